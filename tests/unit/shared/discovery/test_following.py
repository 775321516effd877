from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.discovery import Part, Parts, follow, following
from tests.fakes.changing_source import ChangingSource
from tests.fakes.waiting import until


async def test_every_change_of_a_source_is_applied() -> None:
    source, seen = ChangingSource("a"), list[Parts]()
    task = asyncio.create_task(follow(source, seen.append))
    await until(lambda: len(seen) == 1)
    source.set("a", "b")
    await until(lambda: len(seen) == 2)
    source.set("b", is_stale=True)
    await until(lambda: len(seen) == 3)
    task.cancel()
    assert [(set(parts.addresses), parts.is_stale) for parts in seen] == [
        ({"a"}, False),
        ({"a", "b"}, False),
        ({"b"}, True),
    ]


class _BreakingSource:
    def __init__(self) -> None:
        self.num_watches = 0

    async def watch(self) -> AsyncIterator[Parts]:
        self.num_watches += 1
        yield Parts({str(self.num_watches): Part(str(self.num_watches))})
        if self.num_watches == 1:
            raise RuntimeError("a bug")


async def test_a_source_that_raises_or_ends_is_watched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_PAUSE_AFTER_FAILURE_SECONDS", 0)
    source, seen = _BreakingSource(), list[str]()
    task = asyncio.create_task(follow(source, lambda parts: seen.extend(parts.addresses)))
    await until(lambda: len(seen) >= 3)
    task.cancel()
    assert seen[:3] == ["1", "2", "3"]
