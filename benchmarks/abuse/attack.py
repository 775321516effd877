"""Attacks: functions that send a hostile request to a stack and return its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "quire-chat"
# Maximum number of bytes of an answer's body to keep. The rest is read and discarded.
_KEPT_BYTES = 8000


@dataclass(frozen=True, slots=True)
class Target:
    """A running stack."""

    host: str
    port: int
    # gRPC address of the stack's scheduler.
    scheduler: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`status`: the HTTP status, or 0 if the connection ended without an answer. `text`: the beginning of the body, or
    a description of what happened instead."""

    status: int
    text: str
    num_bytes: int = 0

    @property
    def error(self) -> Mapping[str, Any]:
        """The error object. Empty if the answer has none."""
        try:
            error = json.loads(self.text).get("error", {})
        except (ValueError, AttributeError):
            return {}
        return error if isinstance(error, dict) else {"message": error}


Attack = Callable[[Target], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. `make` builds the attack before the measurement starts."""

    name: str
    make: Callable[[], Attack]
    # The statuses that count as correct.
    statuses: Collection[int] = (400,)
    # The field that a 400 must name, if the attack is in one field. A 413 names no field.
    param: str | None = None
    # Numbers of parallel copies; the row is measured once for each.
    copies: tuple[int, ...] = field(default=(1, 8))
    # Whether the row sends more requests than the server runs at once, so that other clients must wait.
    takes_all_places: bool = False

    def fault(self, answer: Answer) -> str | None:
        """Describes what is wrong with an answer. None if the answer is correct."""
        if answer.status not in self.statuses:
            return f"status {answer.status}: {answer.text[:100]}"
        if answer.status == 400 and self.param is not None and answer.error.get("param") != self.param:
            return f"the error names {answer.error.get('param')}"
        return None


def first_wrong(answers: Mapping[str, Answer], statuses: Collection[int]) -> Answer:
    """Returns the first answer whose status is not in `statuses`, with its name before its text. Otherwise the last
    answer."""
    for name, answer in answers.items():
        if answer.status not in statuses:
            return Answer(answer.status, f"{name}: {answer.text}")
    return answer


def http_request(path: str, body: bytes | None = None, *headers: str, method: str = "") -> bytes:
    """Returns an HTTP/1.1 request with `connection: close`, so that the server closes the connection after the
    answer."""
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", "host: localhost", "connection: close"]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join((*lines, *headers, "", "")).encode("latin-1") + (body or b"")


def sending(request: bytes) -> Attack:
    """Returns an attack that sends these bytes and reads the whole answer."""

    async def attack(target: Target) -> Answer:
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            # Read at the same time, because the server may answer before it has read the whole request.
            answering = asyncio.create_task(read_answer(reader))
            writer.write(request)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            return await answering
        finally:
            writer.close()

    return attack


def posting(path: str, **fields: Any) -> Attack:
    return sending(http_request(path, json.dumps({"model": MODEL, **fields}).encode()))


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Reads until the server closes the connection. The body may be chunked or of a known length."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        return Answer(0, f"the connection ended without an answer ({type(error).__name__})")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), None)
    kept, num_bytes = b"", 0
    try:
        while length is None or num_bytes < length:
            piece = await reader.read(1 << 16)
            if not piece:
                break
            num_bytes += len(piece)
            kept += piece[: max(0, _KEPT_BYTES - len(kept))]
    except ConnectionError:
        pass
    if any(line.replace(" ", "") == "transfer-encoding:chunked" for line in lines):
        kept = _unchunked(kept)
    return Answer(int(lines[0].split(" ")[1]), kept.decode(errors="replace"), num_bytes)


def _unchunked(body: bytes) -> bytes:
    pieces = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        pieces.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(pieces)
