"""Redis with a replica and Sentinels, what the nemesis does to it, and whether it knows the fleet afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import redis

from shared.discovery import Kind
from tests.fakes.ports import free_port
from tests.fakes.redis_sentinels import PASSWORD, Sentinels
from tests.fakes.redis_server import RedisServer
from tests.fakes.tcp_proxy import Proxy
from tests.fakes.waiting import HANG_S

# How parts connect to the Sentinels.
OPTIONS = ("--redis-sentinel-password", PASSWORD)


class RedisGroup:
    """The servers are reached through proxies, by the parts, by each other and by the Sentinels."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = free_port(), free_port()
        self._servers: Sentinels | None = None
        self._proxies: list[Proxy] = []

    @property
    def url(self) -> str:
        return self._running.url

    async def start(self) -> None:
        """Starts the servers, and returns when the Sentinels can fail over."""
        self._directory.mkdir(exist_ok=True)
        servers = self._servers = await asyncio.to_thread(Sentinels, self._directory, self._ports)
        pairs = zip(self._ports, servers.servers, strict=True)
        self._proxies = [Proxy(port, server.address) for port, server in pairs]
        await asyncio.gather(*(proxy.up() for proxy in self._proxies))
        await self._until_watched()

    async def stop(self) -> None:
        if self._servers is not None:
            await asyncio.to_thread(self._servers.stop)
        await asyncio.gather(*(proxy.down() for proxy in self._proxies))

    async def not_registered(self, expected: Mapping[Kind, set[str]]) -> list[str]:
        """Waits until the primary has the parts at these addresses and no other, for at most HANG_S. Describes what
        differs."""
        found: dict[Kind, set[str]] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG_S):
                while True:
                    for primary in await self._primaries():
                        found = await asyncio.to_thread(_registered, primary)
                        if found == expected:
                            return []
                    await asyncio.sleep(0.2)
        differing = [kind for kind in expected if found.get(kind) != expected[kind]]
        return [
            f"Redis knows {kind}s at {sorted(found.get(kind, ()))} instead of {sorted(expected[kind])}"
            for kind in differing
        ]

    # -- Faults. Each ends with servers that run, and leaves the rest to the Sentinels.

    async def pause_primary(self, seconds: float) -> None:
        """Stops the primary for a while. If it is long enough, the Sentinels make the replica the primary."""
        for primary in await self._primaries():
            with _paused(primary):
                await asyncio.sleep(seconds)

    async def kill_primary(self, seconds: float) -> None:
        """Kills the primary, and starts it again, empty."""
        for primary in await self._primaries():
            await asyncio.to_thread(primary.kill)
            try:
                await asyncio.sleep(seconds)
            finally:
                await asyncio.to_thread(primary.start)
                # One of the servers is started with --replicaof. It would now follow the other one, which follows it.
                # Outside of tests, a server finds its role in the file that the Sentinels rewrite.
                await asyncio.to_thread(primary.command, "REPLICAOF", "NO", "ONE")

    async def empty(self, seconds: float) -> None:
        """Removes all that Redis holds."""
        for primary in await self._primaries():
            await asyncio.to_thread(primary.command, "FLUSHALL")

    async def fail_over(self, seconds: float) -> None:
        """Makes the replica the primary, unless the Sentinels are doing so already or see no replica."""
        with contextlib.suppress(redis.ResponseError):
            await asyncio.to_thread(
                self._running.sentinels[-1].command, "SENTINEL", "FAILOVER", "main", password=PASSWORD
            )

    async def pause_sentinel(self, seconds: float) -> None:
        """Stops a Sentinel while the others make the replica the primary. It first does not answer, and then names the
        server that was the primary, until it has heard of the other one."""
        with _paused(self._running.sentinels[0]):
            await self.fail_over(seconds)
            await asyncio.sleep(seconds)

    async def pause_all(self, seconds: float) -> None:
        """Stops all servers and Sentinels for a while."""
        with contextlib.ExitStack() as stack:
            for process in self._running.processes:
                stack.enter_context(_paused(process))
            await asyncio.sleep(seconds)

    async def cut_off(self, seconds: float) -> None:
        """Lets nobody reach the servers for a while."""
        await asyncio.gather(*(proxy.down() for proxy in self._proxies))
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.gather(*(proxy.up() for proxy in self._proxies))

    async def stall(self, seconds: float) -> None:
        """Holds back all bytes from and to the servers for a while."""
        for proxy in self._proxies:
            proxy.stall()
        try:
            await asyncio.sleep(seconds)
        finally:
            for proxy in self._proxies:
                proxy.unstall()

    @property
    def _running(self) -> Sentinels:
        assert self._servers is not None
        return self._servers

    async def _primaries(self) -> list[RedisServer]:
        return await asyncio.to_thread(self._running.primaries)

    async def _until_watched(self) -> None:
        async with asyncio.timeout(HANG_S):
            while not await asyncio.to_thread(self._running.is_watched):  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.1)


@contextmanager
def _paused(server: RedisServer) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


def _registered(primary: RedisServer) -> dict[Kind, set[str]]:
    with contextlib.suppress(redis.RedisError), primary.client() as client:
        return {kind: {address.decode() for address in client.zrange(f"quire:{kind}:leases", 0, -1)} for kind in Kind}
    return {}
