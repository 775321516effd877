"""HTTP/1.1 as a load generator needs it: a connection per request in progress, and little work per piece of an answer.

Answers are parsed where the socket is read, so that a piece's time is that of its arrival and no task wakes for it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from urllib.parse import urlsplit

# A head or a line of an answer that is longer is none.
MAX_HEAD_BYTES = 65_536
_CLOSED = "the server closed the connection before it answered"

# Takes an answer's status, the next bytes of its body, and when they came (time.perf_counter).
Sink = Callable[[int, bytes, float], None]


class AnswerError(Exception):
    """What came is no answer one can use, or not a whole one."""


class _StaleConnectionError(AnswerError):
    """The server closed a connection at rest before it saw the request."""


class _Part(Enum):
    """What of an answer comes next."""

    HEAD = auto()
    BODY = auto()
    BODY_UNTIL_CLOSE = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()


class AnswerParser:
    """One answer out of a connection's bytes, however they are split (RFC 9112)."""

    def __init__(self) -> None:
        self.status = 0
        self.has_begun = False
        self.is_complete = False
        self.keeps_connection = True
        self._part = _Part.HEAD
        self._buffer = bytearray()
        # Bytes missing of the body or chunk.
        self._missing = 0

    def feed(self, data: bytes) -> bytes:
        """What of the body came with `data`. Raises AnswerError."""
        self.has_begun = True
        self._buffer += data
        body = bytearray()
        while not self.is_complete and self._advance(body):
            pass
        return bytes(body)

    def end(self) -> None:
        """The connection is closed. Raises AnswerError where the answer is not complete with that."""
        if self._part is not _Part.BODY_UNTIL_CLOSE:
            raise AnswerError("the server closed the connection in the middle of an answer")
        self.is_complete = True

    def _advance(self, body: bytearray) -> bool:
        """Takes the next part from the buffer, what of it is body to `body`; False where more must come first."""
        match self._part:
            case _Part.HEAD:
                head = self._take_until(b"\r\n\r\n")
                if head is None:
                    return False
                self._read_head(head.decode("latin-1"))
            case _Part.BODY | _Part.CHUNK:
                piece = self._buffer[: self._missing]
                del self._buffer[: len(piece)]
                body += piece
                self._missing -= len(piece)
                if self._missing:
                    return False
                self.is_complete = self._part is _Part.BODY
                self._part = _Part.CHUNK_END
            case _Part.BODY_UNTIL_CLOSE:
                body += self._buffer
                self._buffer.clear()
                return False
            case _Part.CHUNK_SIZE:
                line = self._take_until(b"\r\n")
                if line is None:
                    return False
                self._missing = _number(line.partition(b";")[0], 16)
                self._part = _Part.CHUNK if self._missing else _Part.TRAILERS
            case _Part.CHUNK_END:
                line = self._take_until(b"\r\n")
                if line is None:
                    return False
                if line:
                    raise AnswerError("the server sent a chunk longer than it said")
                self._part = _Part.CHUNK_SIZE
            case _Part.TRAILERS:
                line = self._take_until(b"\r\n")
                if line is None:
                    return False
                self.is_complete = not line
        return True

    def _take_until(self, mark: bytes) -> bytes | None:
        end = self._buffer.find(mark)
        if end < 0 and len(self._buffer) <= MAX_HEAD_BYTES:
            return None
        if end < 0 or end > MAX_HEAD_BYTES:
            raise AnswerError("the server does not answer in HTTP/1.1")
        taken = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return taken

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
            raise AnswerError("the server does not answer in HTTP/1.1")
        if code.startswith("1"):
            return  # 100 Continue and the like: the answer follows.
        self.status = int(code)
        fields = [line.partition(":") for line in lines]
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in fields}
        self.keeps_connection = version != "HTTP/1.0" and headers.get("connection") != "close"
        if headers.get("transfer-encoding", "").endswith("chunked"):
            self._part = _Part.CHUNK_SIZE
        elif self.status in (204, 304):
            self.is_complete = True
        elif "content-length" in headers:
            self._missing = _number(headers["content-length"].encode("latin-1"), 10)
            self._part = _Part.BODY
        else:
            self.keeps_connection = False
            self._part = _Part.BODY_UNTIL_CLOSE


class Client:
    """Connections to one server: one per request in progress, and those at rest are used again."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        """`base_url`: http or https, with a path in front of every other if there is one. Raises ValueError."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no URL: use http://host:port")
        self._host = parts.hostname
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._prefix = parts.path.rstrip("/")
        fields = {"host": parts.netloc.rpartition("@")[2], "user-agent": "quire-bench", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[_Connection] = []

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request, which can be made before the clock runs."""
        kind = "content-type: application/json\r\n" if body else ""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}{kind}content-length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body

    async def send(self, request: bytes, sink: Sink) -> int:
        """The answer's status, once the whole body has gone to `sink`. Cancelled, the connection is closed, which tells
        the server to stop. Raises OSError, AnswerError, and what `sink` does."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                try:
                    return await self._exchange(connection, request, sink)
                except _StaleConnectionError:
                    pass  # Closed while the request was on its way: nobody read it.
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl)
        return await self._exchange(connection, request, sink)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, connection: _Connection, request: bytes, sink: Sink) -> int:
        status = await connection.exchange(request, sink)
        if connection.is_open:
            self._idle.append(connection)
        return status


class _Connection(asyncio.Protocol):
    """One request and answer at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = AnswerParser()
        self._sink: Sink | None = None
        self._answered: asyncio.Future[int] | None = None
        self._is_new = True

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, sink: Sink) -> int:
        self._parser = AnswerParser()
        self._sink = sink
        self._answered = asyncio.get_running_loop().create_future()
        try:
            if self._transport is None:
                raise _StaleConnectionError(_CLOSED)
            self._transport.write(request)
            status = await self._answered
        except BaseException:
            self.close()
            raise
        finally:
            self._answered = None
        self._is_new = False
        if not self._parser.keeps_connection:
            self.close()
        return status

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._answered is None or self._answered.done() or self._sink is None:
            self.close()  # Nobody asked for that.
            return
        try:
            body = self._parser.feed(data)
            if body:
                self._sink(self._parser.status, body, now)
        except Exception as error:
            self._answered.set_exception(error)
            return
        if self._parser.is_complete:
            self._answered.set_result(self._parser.status)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answered is None or self._answered.done():
            return
        if not self._parser.has_begun and not self._is_new:
            self._answered.set_exception(_StaleConnectionError(_CLOSED))
            return
        try:
            self._parser.end()
            self._answered.set_result(self._parser.status)
        except AnswerError as incomplete:
            self._answered.set_exception(error or incomplete)


def _number(digits: bytes, base: int) -> int:
    try:
        number = int(digits, base)
    except ValueError:
        number = -1
    if number < 0:
        raise AnswerError(f"the server says {digits[:32]!r} where a length must be")
    return number
