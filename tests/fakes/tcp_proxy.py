"""A TCP proxy between two parts, which can be taken down, cut, delayed and stalled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 65_536
_CONNECT_LIMIT_S = 10.0


class Proxy:
    """Passes bytes between a TCP port and another address.

    `port`: the port to listen on; 0: a free one. `target`: the other part's address, unix:/path or host:port.
    """

    def __init__(self, port: int, target: str) -> None:
        self.port = port
        self._target = target
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        # Cleared while bytes do not pass, although connections stay open: a network that drops every packet.
        self._passing = asyncio.Event()
        self._passing.set()
        # Seconds by which bytes are late.
        self.delay_s = 0.0
        self.num_bytes_from_target = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def up(self) -> None:
        """Accepts connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Refuses connections, and cuts those that exist."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Breaks every connection, in both directions. Later ones are accepted."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def stall(self) -> None:
        """Holds all bytes back, also those of new connections."""
        self._passing.clear()

    def unstall(self) -> None:
        self._passing.set()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connection(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self._passing.wait()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_LIMIT_S):
                    other_reader, other_writer = await self._connect()
                ends.append(other_writer)
                await self._both_ways((reader, other_writer, False), (other_reader, writer, True))
        finally:
            # Without a farewell: what a peer sees is a broken connection.
            for end in ends:
                end.transport.abort()

    async def _both_ways(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]) -> None:
        """Passes bytes until one side closes or breaks its connection. gRPC and HTTP/2 use no half-open connections."""
        passing = [asyncio.create_task(self._pass(*way)) for way in ways]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in passing:
                way.cancel()
            await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_from_target: bool) -> None:
        while data := await reader.read(_CHUNK):
            await self._passing.wait()
            self.num_bytes_from_target += len(data) * is_from_target
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("unix:"):
            return await asyncio.open_unix_connection(self._target.removeprefix("unix:"))
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))


@asynccontextmanager
async def tcp_proxy(target_port: int) -> AsyncIterator[Proxy]:
    """Runs a proxy in front of a port of this host."""
    proxy = Proxy(0, f"127.0.0.1:{target_port}")
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.down()
