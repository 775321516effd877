"""Writes that a client does not take: each ends on its own, in time, and nothing else does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from services.router.limits import stall_watch
from services.router.limits.stall_watch import ClientStalledError, StallWatch
from tests.fakes.loop_clock import LoopClock


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    clock = LoopClock()
    monkeypatch.setattr(stall_watch, "time", SimpleNamespace(monotonic=clock.time))
    return clock


async def test_a_write_that_is_not_taken_ends_and_others_go_on(clock: LoopClock) -> None:
    watch = StallWatch(10)
    never, later = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def stalled() -> None:
        with pytest.raises(ClientStalledError):
            await watch.over(never.wait())  # type: ignore[arg-type]
        ended.append("stalled")
        # The task itself lives on.
        await asyncio.sleep(0)
        later.set()

    async def writes_often() -> None:
        while not later.is_set():
            await watch.over(clock.pass_by(3))
        ended.append("often")

    await asyncio.gather(stalled(), writes_often())
    assert ended == ["stalled", "often"]


async def test_a_write_that_begins_while_another_is_watched_has_as_long(clock: LoopClock) -> None:
    watch = StallWatch(10)
    taken, never = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(watch.over(taken.wait()))  # type: ignore[arg-type]
    await clock.pass_by(5)
    second = asyncio.create_task(watch.over(never.wait()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    taken.set()
    await first
    await clock.pass_by(9)
    assert not second.done()
    await clock.pass_by(2)
    with pytest.raises(ClientStalledError):
        await second


async def test_a_task_that_somebody_else_cancels_is_cancelled() -> None:
    watch = StallWatch(60)
    task = asyncio.create_task(watch.over(asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_pause_of_the_router_is_no_stall_of_its_clients(clock: LoopClock) -> None:
    watch = StallWatch(10)
    never = asyncio.Event()
    write = asyncio.create_task(watch.over(never.wait()))  # type: ignore[arg-type]
    await clock.pass_by(5)
    await clock.pass_by(60)
    await clock.pass_by(1)
    assert not write.done()
    for _ in range(2):
        await clock.pass_by(1)
    with pytest.raises(ClientStalledError):
        await write
