from __future__ import annotations

import asyncio

import pytest

from services.router.dispatch.silence import SilenceWatch
from shared.pulse import Pulse
from tests.fakes.loop_clock import LoopClock

MS = 0.001


async def silence(clock: LoopClock, watching: asyncio.Task[float]) -> float:
    """Lets time pass until the watch ends. Returns the seconds, to a millisecond."""
    started = clock.time()
    while not watching.done():
        await clock.pass_by(MS)
    return clock.time() - started


@pytest.fixture
def watch() -> SilenceWatch:
    return SilenceWatch(Pulse(), 2.0)


@pytest.mark.parametrize("phase_ms", [0, 1, 50, 99, 100, 150, 199])
async def test_the_limit_counts_from_the_last_message(watch: SilenceWatch, phase_ms: int) -> None:
    clock = LoopClock()
    watching = asyncio.create_task(watch.run())
    await clock.pass_by(0.0)
    for _ in range(10):
        for _ in range(phase_ms or 1):
            await clock.pass_by(MS)
        watch.heard()
    assert await silence(clock, watching) == pytest.approx(2.0, abs=2 * MS)
    assert watching.result() == 2.0


async def test_nothing_at_all_is_silence_too(watch: SilenceWatch) -> None:
    clock = LoopClock()
    watching = asyncio.create_task(watch.run())
    await clock.pass_by(0.0)
    assert await silence(clock, watching) == pytest.approx(2.0, abs=2 * MS)


async def test_a_scheduler_with_long_pauses_gets_five_times_as_long(watch: SilenceWatch) -> None:
    clock = LoopClock()
    watching = asyncio.create_task(watch.run())
    await clock.pass_by(0.0)
    for _ in range(3):
        for _ in range(700):
            await clock.pass_by(MS)
        watch.heard()
    assert await silence(clock, watching) == pytest.approx(5 * 0.7, abs=10 * MS)


@pytest.mark.parametrize("before_ms", [0, 150, 390])
async def test_a_pause_of_the_router_itself_does_not_count(watch: SilenceWatch, before_ms: int) -> None:
    clock = LoopClock()
    watching = asyncio.create_task(watch.run())
    await clock.pass_by(0.0)
    for _ in range(before_ms):
        await clock.pass_by(MS)
    await clock.pass_by(60.0)
    for _ in range(10):  # what came meanwhile is not read at once
        await clock.pass_by(MS)
    watch.heard()
    assert await silence(clock, watching) == pytest.approx(2.0, abs=2 * MS)


async def test_after_a_pause_just_before_the_limit_there_is_time_to_read(watch: SilenceWatch) -> None:
    clock = LoopClock()
    watching = asyncio.create_task(watch.run())
    await clock.pass_by(0.0)
    for _ in range(1999):
        await clock.pass_by(MS)
    await clock.pass_by(60.0)
    for _ in range(150):
        await clock.pass_by(MS)
    assert not watching.done()
    watch.heard()
    assert await silence(clock, watching) == pytest.approx(2.0, abs=2 * MS)
