"""A TCP proxy between two parts, which can be taken down, cut, delayed and stalled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 65_536
_CONNECT_LIMIT_S = 10.0
# When one side has closed its connection, the other has so many seconds to follow. gRPC and HTTP/2 use no half-open
# connections.
_LINGER_S = 1.0


class Proxy:
    """Passes bytes between a TCP port and another address.

    `port`: the port to listen on; 0: a free one. `target`: the other part's address, unix:/path or host:port.
    """

    def __init__(self, port: int, target: str) -> None:
        self.port = port
        host, _, number = target.rpartition(":")
        # As the socket module has it: the path of a Unix socket, or a host and a port.
        self._target = target.removeprefix("unix:") if target.startswith("unix:") else (host, int(number))
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
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
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._accepting = asyncio.create_task(self._accept(self._listener))

    async def down(self) -> None:
        """Refuses connections, and cuts those that exist."""
        if self._listener is not None:
            assert self._accepting is not None
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._listener.close()
            self._listener = None
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

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            near, _ = await asyncio.get_running_loop().sock_accept(listener)
            connection = asyncio.create_task(self._connection(near))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _connection(self, near: socket.socket) -> None:
        # Without a farewell at a cut: what a peer sees is a broken connection.
        with near, self._far() as far:
            near.setblocking(False)
            await self._passing.wait()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_LIMIT_S):
                    await asyncio.get_running_loop().sock_connect(far, self._target)
                await self._both_ways(near, far)

    def _far(self) -> socket.socket:
        far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
        far.setblocking(False)
        return far

    async def _both_ways(self, near: socket.socket, far: socket.socket) -> None:
        """Passes bytes until both sides have closed their connection, or one has and the other does not follow."""
        passing = [
            asyncio.create_task(self._pass(near, far, is_from_target=False)),
            asyncio.create_task(self._pass(far, near, is_from_target=True)),
        ]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(passing, timeout=_LINGER_S)
        finally:
            for way in passing:
                way.cancel()
            await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(self, source: socket.socket, sink: socket.socket, *, is_from_target: bool) -> None:
        """Passes bytes until `source` ends, then tells `sink` so. Like the kernel of a host whose process has ended, it
        delivers what was sent before the end: no byte waits here when the next ones are read."""
        loop, is_open = asyncio.get_running_loop(), True
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(source, _CHUNK):
                await self._passing.wait()
                self.num_bytes_from_target += len(data) * is_from_target
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if is_open:
                    try:
                        await loop.sock_sendall(sink, data)
                    except OSError:
                        # Reads on. To a side whose bytes nobody reads, the kernel does not send all that is left.
                        is_open = False
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@asynccontextmanager
async def tcp_proxy(target_port: int) -> AsyncIterator[Proxy]:
    """Runs a proxy in front of a port of this host."""
    proxy = Proxy(0, f"127.0.0.1:{target_port}")
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.down()
