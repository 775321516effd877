"""Groups of one scheduler whose contexts differ: no sequence goes where it does not fit."""

from __future__ import annotations

import time

from services.scheduler.config import SchedulerConfig
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.engine import Engine
from services.scheduler.fleet import Fleet
from tests.unit.scheduler.driver import request, scheduler


def group(fleet: Fleet, core: Scheduler, *, is_ready: bool) -> Engine:
    engine = Engine("unix:/nowhere", fleet)
    engine.core = core
    if is_ready:
        engine.ready.set()
    return engine


async def test_a_group_that_comes_back_takes_what_fits_it() -> None:
    fleet = Fleet("s", SchedulerConfig())
    lost = group(fleet, scheduler(max_model_len=64), is_ready=False)
    back = group(fleet, scheduler(max_model_len=16), is_ready=True)
    assert lost.core is not None
    for key, max_tokens in (("long", 60), ("short", 5)):
        lost.core.submit(request(key, prompt_len=3, max_tokens=max_tokens))
    back._take(fleet.drain_lost(but=back))
    assert (lost.num_unfinished, back.num_unfinished) == (1, 1)


async def test_what_a_lost_group_leaves_goes_to_groups_that_hold_it() -> None:
    fleet = Fleet("s", SchedulerConfig())
    lost = group(fleet, scheduler(max_model_len=64), is_ready=True)
    small = group(fleet, scheduler(max_model_len=16), is_ready=True)
    large = group(fleet, scheduler(max_model_len=32), is_ready=True)
    assert lost.core is not None
    for key, max_tokens in (("longest", 60), ("long", 20), ("short", 5)):
        lost.core.submit(request(key, prompt_len=3, max_tokens=max_tokens))
    lost._lose()
    assert [engine.num_unfinished for engine in (lost, small, large)] == [1, 1, 1]


async def test_time_in_which_the_scheduler_was_stopped_is_not_held_against_a_lost_worker() -> None:
    fleet = Fleet("s", SchedulerConfig(worker_timeout=10.0))
    lost = group(fleet, scheduler(), is_ready=False)
    assert lost.core is not None
    lost.core.submit(request("waits"))
    lost.lost_since = now = time.monotonic()
    lost.tick(now)
    lost.tick(now + 60.0)
    for tenths in range(100):
        lost.tick(now + 60.0 + tenths / 10)
    assert lost.num_unfinished == 1
