from __future__ import annotations

import asyncio
import socket

import pytest

from shared.discovery import DiscoveryOptions, Kind, KnownParts, Part, Parts, Registry, source_of
from tests.fakes.changing_source import TimedChangingSource


async def test_numeric_addresses_and_names_are_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(host: str, port: int, *, type: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:  # noqa: A002
        await asyncio.sleep(0)
        return [(socket.AF_INET, type, 6, "", (ip, port)) for ip in ("10.0.0.1", "10.0.0.2")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    source = source_of(["scheduler:50052", "10.0.0.7:50052", "localhost:1", "unix:/x"], Kind.SCHEDULER)
    watch = source.watch()
    first = await anext(watch)
    given = ("10.0.0.7:50052", "localhost:1", "unix:/x")
    assert first == Parts({address: Part(address) for address in given}, is_stale=True)
    second = await anext(watch)
    assert second.addresses == first.addresses | {"10.0.0.1:50052", "10.0.0.2:50052"}
    assert not second.is_stale


async def test_a_registered_name_is_looked_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Registered(Registry):
        def source(self, kind: Kind, *_: object) -> TimedChangingSource:  # type: ignore[override]
            assert kind == Kind.ROUTER
            return TimedChangingSource("10.0.0.7:50051", "router-0.routers:50051")

    async def getaddrinfo(host: str, port: int, *, type: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:  # noqa: A002
        assert (host, port) == ("router-0.routers", 50051)
        return [(socket.AF_INET, type, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    watch = source_of([], Kind.ROUTER, Registered(DiscoveryOptions())).watch()
    while (parts := await anext(watch)).is_stale:
        pass
    assert parts.addresses == {"10.0.0.7:50051", "10.0.0.1:50051"}


async def test_no_address_is_an_empty_set() -> None:
    assert await anext(source_of([], Kind.WORKER).watch()) == Parts({})


async def test_one_stale_source_makes_the_set_stale_and_is_counted() -> None:
    one, other = TimedChangingSource("a:1", "b:1"), TimedChangingSource("b:1", "c:1")
    known = KnownParts(Kind.WORKER, [one, other])
    watch = known.watch()
    while (await anext(watch)).is_stale:
        pass
    assert (known.num_known, known.num_stale) == (3, 0)
    other.set("b:1", "c:1", is_stale=True)
    assert (await anext(watch)).is_stale
    assert (known.num_known, known.num_stale) == (3, 1)
    other.age = 7.0
    assert known.seconds_since_answer() == 7.0


async def test_sources_are_left_alone_once_nobody_watches() -> None:
    watch = KnownParts(Kind.WORKER, [TimedChangingSource("a:1")]).watch()
    before = asyncio.all_tasks()
    await anext(watch)
    await watch.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_the_error_of_a_source_reaches_the_watcher() -> None:
    class Broken(TimedChangingSource):
        def watch(self):  # type: ignore[no-untyped-def]
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await anext(KnownParts(Kind.WORKER, [Broken()]).watch())
