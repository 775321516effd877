from __future__ import annotations

import asyncio

import pytest

from shared.discovery import Part, Parts
from shared.discovery.named_parts import NamedParts
from tests.fakes.changing_source import TimedChangingSource


class Names:
    """Makes the source of each name, and keeps it."""

    def __init__(self) -> None:
        self.sources: dict[str, TimedChangingSource] = {}

    def __call__(self, name: str, port: int) -> TimedChangingSource:
        source = self.sources[f"{name}:{port}"] = TimedChangingSource()
        source.set(is_stale=True)
        return source


async def test_a_part_with_a_name_is_a_part_at_each_address_of_the_name() -> None:
    registered, names = TimedChangingSource("10.0.0.7:1", "unix:/x", "localhost:2", "router-0.routers:50051"), Names()
    watch = NamedParts(registered, names).watch()
    first = await anext(watch)
    assert first.is_stale
    assert first.addresses == {"10.0.0.7:1", "unix:/x", "localhost:2"}

    names.sources["router-0.routers:50051"].set("10.0.0.1:50051", "10.0.0.2:50051")
    second = await anext(watch)
    assert not second.is_stale
    assert second.addresses == first.addresses | {"10.0.0.1:50051", "10.0.0.2:50051"}


async def test_what_the_part_has_registered_holds_at_each_address() -> None:
    class Registered(TimedChangingSource):
        async def watch(self):  # type: ignore[no-untyped-def]
            yield Parts({"worker:1": Part("worker:1", "boot", "model", "0.1.0")})
            await asyncio.Event().wait()

    names = Names()
    watch = NamedParts(Registered(), names).watch()
    await anext(watch)
    names.sources["worker:1"].set("10.0.0.1:1")
    assert await anext(watch) == Parts({"10.0.0.1:1": Part("10.0.0.1:1", "boot", "model", "0.1.0")})


async def test_a_name_that_no_part_has_any_more_is_not_looked_up() -> None:
    registered, names = TimedChangingSource("one:1", "two:1"), Names()
    known = NamedParts(registered, names)
    watch = known.watch()
    await anext(watch)
    names.sources["one:1"].set("10.0.0.1:1")
    names.sources["two:1"].set("10.0.0.2:1")
    while (parts := await anext(watch)).is_stale:
        pass
    assert parts.addresses == {"10.0.0.1:1", "10.0.0.2:1"}

    names.sources["one:1"].age = 9.0
    assert known.seconds_since_answer() == 9.0
    registered.set("two:1")
    assert (await anext(watch)).addresses == {"10.0.0.2:1"}
    assert known.seconds_since_answer() == 0.0
    registered.set("one:1", "two:1")  # Its old answer is forgotten.
    again = await anext(watch)
    assert again.is_stale
    assert again.addresses == {"10.0.0.2:1"}


async def test_no_lookup_goes_on_once_nobody_watches() -> None:
    before = asyncio.all_tasks()
    watch = NamedParts(TimedChangingSource("one:1"), Names()).watch()
    await anext(watch)
    await watch.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_the_error_of_the_source_reaches_the_watcher() -> None:
    class Broken(TimedChangingSource):
        def watch(self):  # type: ignore[no-untyped-def]
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await anext(NamedParts(Broken()).watch())
