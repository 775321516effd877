"""A peer has its full time, however long this process was held up itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.patience import NUM_TICKS, Patience
from tests.fakes.loop_clock import LoopClock


async def wait(clock_started: asyncio.Event, seconds: float) -> None:
    async with Patience(seconds):
        clock_started.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("num_ticks_before", range(NUM_TICKS))
async def test_a_pause_of_this_process_is_no_silence_of_the_peer(num_ticks_before: int) -> None:
    clock, started = LoopClock(), asyncio.Event()
    waiting = asyncio.create_task(wait(started, 5.0))
    await started.wait()
    for _ in range(num_ticks_before):
        await clock.pass_by(5.0 / NUM_TICKS)
    await clock.pass_by(60.0)
    for _ in range(NUM_TICKS - num_ticks_before - 1):
        await clock.pass_by(5.0 / NUM_TICKS)
    assert not waiting.done()
    await clock.pass_by(5.0 / NUM_TICKS)
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_loop_that_is_always_late_loses_patience_too() -> None:
    clock, started = LoopClock(), asyncio.Event()
    waiting = asyncio.create_task(wait(started, 5.0))
    await started.wait()
    for _ in range(2 * NUM_TICKS):
        assert not waiting.done()
        await clock.pass_by(60.0)
    with pytest.raises(TimeoutError):
        await waiting


async def test_what_ends_in_time_leaves_nothing_behind() -> None:
    clock, problems = LoopClock(), list[dict[str, Any]]()
    # A tick that fires after its block has ended raises an error, which the loop would only log.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    async with Patience(5.0):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="its own"):
        async with Patience(5.0):
            raise ValueError("its own")
    for _ in range(2 * NUM_TICKS):
        await clock.pass_by(5.0)
    assert problems == []


async def test_a_cancellation_stays_one() -> None:
    started = asyncio.Event()
    waiting = asyncio.create_task(wait(started, 60.0))
    await started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
