"""A server on a free port that answers each request as a script says, byte by byte if it wants to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

# Answers one request, whose head and body it gets, on its connection; cancelled where the client leaves.
Script = Callable[[str, bytes, asyncio.Transport], Coroutine[None, None, None]]


@dataclass
class ScriptedServer:
    url: str
    num_connections: int = 0


class _Connection(asyncio.Protocol):
    def __init__(self, script: Script, server: ScriptedServer) -> None:
        self._script = script
        self._server = server
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._answer: asyncio.Task[None] | None = None
        self._server.num_connections += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, mark, body = self._buffer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split()
        if mark and len(body) == (int(length[0]) if length else 0):
            self._buffer = b""
            self._answer = asyncio.create_task(self._script(head.decode(), body, self._transport))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._answer.cancel()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[ScriptedServer]:
    running = ScriptedServer("")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(script, running), "127.0.0.1", 0)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield running


def whole(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *fields])
    return f"{head}\r\n\r\n".encode() + body


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"
