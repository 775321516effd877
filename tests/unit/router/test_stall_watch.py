"""Writes that a client does not take: each ends on its own, in time, and nothing else does."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.router.stall_watch import ClientStalledError, StallWatch


async def test_a_write_that_is_not_taken_ends_and_others_go_on() -> None:
    watch = StallWatch(0.05)
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
            await watch.over(asyncio.sleep(0.001))
        ended.append("often")

    await asyncio.gather(stalled(), writes_often())
    assert ended == ["stalled", "often"]


async def test_a_write_that_begins_while_another_is_watched_has_as_long() -> None:
    watch = StallWatch(0.1)
    taken = asyncio.Event()
    first = asyncio.create_task(watch.over(taken.wait()))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    second = asyncio.create_task(watch.over(asyncio.sleep(60)))
    await asyncio.sleep(0)
    taken.set()
    await first
    with pytest.raises(ClientStalledError):
        await second
    assert time.monotonic() - began >= 0.1


async def test_a_task_that_somebody_else_cancels_is_cancelled() -> None:
    watch = StallWatch(60)
    task = asyncio.create_task(watch.over(asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
