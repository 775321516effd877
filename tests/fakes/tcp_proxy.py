"""A TCP proxy that a test cuts, stops and restores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TcpProxy:
    """Forwards connections to a port of this host. While it is not `is_open`, it swallows all bytes, as a network does
    that loses every packet: neither side sees an end of the connection."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.num_bytes_from_target = 0

    def partition(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        """Delivers what was sent during the partition."""
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await self._open.wait()
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            there = asyncio.create_task(self._copy(reader, target_writer, is_from_target=False))
            back = asyncio.create_task(self._copy(target_reader, writer, is_from_target=True))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                target_writer.close()
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_from_target: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                if is_from_target:
                    self.num_bytes_from_target += len(data)
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def tcp_proxy(target_port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(target_port)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
