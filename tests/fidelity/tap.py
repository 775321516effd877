"""A port that passes connections on to a gateway, byte for byte both ways, and looks at every HTTP/1.1 answer that
passes: so that whatever client a test uses, its answers are checked. gRPC passes unread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import h11

from tests.fidelity import own_document, published
from tests.fidelity.answer import Answer

T = TypeVar("T")
_HEAD_END = b"\r\n\r\n"


class Tap:
    """In a thread of its own, until the block ends."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap", daemon=True)
        self._problems: list[str] = []
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.num_checked = 0

    def __enter__(self) -> Tap:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def take_problems(self) -> list[str]:
        """What was wrong with answers since the last call."""
        found, self._problems = self._problems, []
        return found

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _checked(self, answer: Answer) -> None:
        self.num_checked += 1
        try:
            self._problems += [*own_document.problems(answer), *published.problems(answer)]
        except Exception as error:  # no JSON, no event: nothing may be lost here
            self._problems.append(f"{answer.verb} {answer.path} {answer.status}: {error!r}: {answer.body[:200]!r}")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        observer = _Observer(self._checked)
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            asking = asyncio.create_task(_pass_on(reader, upstream, observer.asked))
            answering = asyncio.create_task(_pass_on(answers, writer, observer.answered))
            await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                # An answer before all of a body was read: closing now would take the answer from the client.
                observer.ended()
                writer.write_eof()
                await asyncio.wait([asking], timeout=1)
            for direction in (asking, answering):
                direction.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the gateway is not there, or the tap is closing: the client's connection ends too
        finally:
            observer.ended()
            for end in (writer, upstream):
                if end is not None:
                    end.close()
            self._connections.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], None]) -> None:
    """What the other end does not take any more is dropped."""
    while data := await reader.read(1 << 16):
        look(data)
        with contextlib.suppress(OSError):
            writer.write(data)
            await writer.drain()


class _Observer:
    """Tells one connection's answers apart. Clients do not pipeline: a request begins where the last answer ended."""

    def __init__(self, checked: Callable[[Answer], None]) -> None:
        self._checked = checked
        self._is_http1 = True
        self._head = b""
        self._parser: h11.Connection | None = None
        self._request = ("", "")
        self._response: h11.Response | None = None
        self._body: list[bytes] = []

    def asked(self, data: bytes) -> None:
        if not self._is_http1 or self._parser is not None:
            return  # of gRPC, or the rest of a request
        self._head += data
        if self._head.startswith(b"PRI * HTTP/2"):
            self._is_http1 = False
        elif _HEAD_END in self._head:
            verb, target, _ = self._head.partition(b"\r\n")[0].decode("latin-1").split(" ")
            self._request = (verb, target.partition("?")[0])
            self._head = b""
            self._parser = h11.Connection(h11.CLIENT)
            self._parser.send(h11.Request(method=verb, target="/", headers=[("host", "gateway")]))
            self._parser.send(h11.EndOfMessage())

    def answered(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._parser.receive_data(data)
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.Response):
                self._response = event
            elif isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._answer(is_whole=True)
                return
            elif not isinstance(event, h11.InformationalResponse):
                return

    def ended(self) -> None:
        """The connection; an answer that was under way was cut off."""
        if self._response is not None:
            self._answer(is_whole=False)

    def _answer(self, *, is_whole: bool) -> None:
        assert self._response is not None
        content_type = dict(self._response.headers).get(b"content-type", b"").decode("latin-1")
        verb, path = self._request
        status, body = self._response.status_code, b"".join(self._body)
        self._parser, self._response, self._body = None, None, []
        self._checked(Answer(verb, path, status, content_type, body, is_whole))
