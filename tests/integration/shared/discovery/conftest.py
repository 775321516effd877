from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.discovery import Kind, Parts, rhythm
from shared.discovery.endpoint import parse_endpoint
from shared.discovery.redis import RedisConnection, RedisRegistration, RedisSource, registration
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import HANG_S

# A lease that does not end during a test, however slow the machine is.
LONG_S = 3600.0


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rhythm, "RENEWAL_S", 0.05)
    monkeypatch.setattr(rhythm, "QUESTION_S", 0.05)
    # A part whose lease does not end must have left before the test goes on.
    monkeypatch.setattr(registration, "LEAVE_TIMEOUT_S", HANG_S)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


class Part:
    """A process that registers as one part."""

    def __init__(
        self,
        url: str,
        address: str,
        *,
        kind: Kind = Kind.WORKER,
        prefix: str = "quire",
        boot_id: str = "boot",
        model: str = "model",
        kv_tokens: int = 0,
        lease_seconds: float = LONG_S,
        connection: RedisConnection | None = None,
    ) -> None:
        self.address = address
        self.connection = connection or connect(url)
        self.registration = RedisRegistration(
            *(self.connection, prefix, kind, [address]),
            boot_id=boot_id,
            model=model,
            version="1",
            kv_tokens=kv_tokens,
            lease_seconds=lease_seconds,
        )
        self.registration.start()

    async def leave(self) -> None:
        await self.registration.leave()
        await self.connection.close()

    async def die(self) -> None:
        """Stops without telling Redis, as after SIGKILL."""
        task = self.registration._renewing
        assert task is not None
        task.cancel()
        await self.connection.close()


class Fleet:
    """Parts that end with the test."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parts: list[Part] = []

    def add(self, address: str, **options: object) -> Part:
        part = Part(self._url, address, **options)  # type: ignore[arg-type]
        self._parts.append(part)
        return part

    async def stop(self, *addresses: str) -> None:
        """Lets parts leave; default: all."""
        for part in self._parts:
            if not addresses or part.address in addresses:
                await part.leave()


@asynccontextmanager
async def fleet_in(url: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(url)
    try:
        yield fleet
    finally:
        await fleet.stop()


def connect(url: str, timeout_seconds: float = HANG_S) -> RedisConnection:
    """Returns a connection that waits for a slow machine. A test of silence needs a shorter time."""
    return RedisConnection(parse_endpoint(url), timeout_seconds=timeout_seconds)


class Watch:
    """Follows a source, and keeps every value."""

    def __init__(
        self,
        connection: RedisConnection,
        *,
        kind: Kind = Kind.WORKER,
        prefix: str = "quire",
        model_name: Callable[[], str] | None = None,
    ) -> None:
        self._connection = connection
        self._source = RedisSource(connection, prefix, kind, model_name=model_name, lease_seconds=2.0)
        self._values = self._source.watch()
        self.seen: list[Parts] = []

    @property
    def source(self) -> RedisSource:
        return self._source

    async def until(self, *addresses: str, is_stale: bool | None = None) -> Parts:
        """Returns the first further value with exactly these addresses, stale or not."""
        async for parts in self._values:
            self.seen.append(parts)
            if parts.addresses == set(addresses) and is_stale in (None, parts.is_stale):
                return parts
        raise AssertionError("a source has ended")

    async def close(self) -> None:
        await self._values.aclose()  # type: ignore[attr-defined]
        await self._connection.close()


@asynccontextmanager
async def watching(
    url: str,
    *,
    kind: Kind = Kind.WORKER,
    prefix: str = "quire",
    model_name: Callable[[], str] | None = None,
    timeout_seconds: float = HANG_S,
    connection: RedisConnection | None = None,
) -> AsyncIterator[Watch]:
    watch = Watch(connection or connect(url, timeout_seconds), kind=kind, prefix=prefix, model_name=model_name)
    try:
        yield watch
    finally:
        await watch.close()
