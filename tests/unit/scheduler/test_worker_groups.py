"""Groups of one scheduler whose contexts differ: no sequence goes where it does not fit."""

from __future__ import annotations

import time
from array import array

import pytest

from services.scheduler.config import SchedulerConfig
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.request import Generate
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.sessions.routed_request import RoutedRequest
from services.scheduler.sessions.session import RouterSession
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.worker_group import STUCK_S, WorkerGroup


def request(sequence_id: int, max_tokens: int = 10) -> RoutedRequest:
    key = RouterSession("r").add_sequence(sequence_id, 0)
    return RoutedRequest(key, array("I", [1, 2, 3]), Generate(max_tokens), cache_salt=sequence_id)


def scheduler(max_model_len: int = 64) -> Scheduler[RoutedRequest]:
    return Scheduler(
        CoreConfig(16, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=max_model_len)
    )


def group(fleet: Fleet, core: Scheduler[RoutedRequest], *, is_ready: bool) -> WorkerGroup:
    group = fleet.add_group("unix:/nowhere")
    group.core = core
    if is_ready:
        group.ready.set()
    return group


async def test_a_group_that_comes_back_takes_what_fits_it() -> None:
    fleet = Fleet("s", SchedulerConfig())
    lost = group(fleet, scheduler(max_model_len=64), is_ready=False)
    back = group(fleet, scheduler(max_model_len=16), is_ready=True)
    assert lost.core is not None
    for sequence_id, max_tokens in enumerate((60, 5)):
        lost.core.submit(request(sequence_id, max_tokens))
    back._adopt(back.drain_lost())
    assert (lost.num_unfinished, back.num_unfinished) == (1, 1)


async def test_what_a_lost_group_leaves_goes_to_groups_that_hold_it() -> None:
    fleet = Fleet("s", SchedulerConfig())
    lost = group(fleet, scheduler(max_model_len=64), is_ready=True)
    small = group(fleet, scheduler(max_model_len=16), is_ready=True)
    large = group(fleet, scheduler(max_model_len=32), is_ready=True)
    assert lost.core is not None
    for sequence_id, max_tokens in enumerate((60, 20, 5)):
        lost.core.submit(request(sequence_id, max_tokens))
    lost._on_lost()
    assert [group.num_unfinished for group in (lost, small, large)] == [1, 1, 1]


async def test_time_in_which_the_scheduler_was_stopped_is_not_held_against_a_lost_worker() -> None:
    fleet = Fleet("s", SchedulerConfig(worker_timeout=10.0))
    lost = group(fleet, scheduler(), is_ready=True)
    assert lost.core is not None
    lost.core.submit(request(1))
    lost._on_lost()
    now = time.monotonic()
    lost.tick(now)
    lost.tick(now + 60.0)
    for tenths in range(1, 90):
        lost.tick(now + 60.0 + tenths / 10)
    assert lost.num_unfinished == 1
    for tenths in range(90, 102):
        lost.tick(now + 60.0 + tenths / 10)
    assert lost.num_unfinished == 0, "the worker was away for longer than its timeout"


async def test_a_claim_that_fails_gives_a_lost_worker_no_more_time() -> None:
    fleet = Fleet("s", SchedulerConfig(worker_timeout=10.0))
    lost = group(fleet, scheduler(), is_ready=True)
    lost._on_lost()
    now = time.monotonic()
    for second in range(10):
        lost.tick(now + second)
        lost._on_lost()
    assert lost.silent_s == pytest.approx(9.0, abs=0.5)


async def test_a_scheduler_that_was_stopped_finds_its_worker_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health may be asked for before the first tick after the pause."""
    stuck = group(Fleet("s", SchedulerConfig()), scheduler(), is_ready=True)
    assert stuck.core is not None
    stuck.core.submit(request(1))
    stuck.core.schedule()
    now = time.monotonic()
    stuck.tick(now)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now + 60.0)
        assert stuck.is_healthy
    stuck.tick(now + 60.0)
    assert stuck.is_healthy
    for second in range(61, 60 + int(STUCK_S) - 1):
        stuck.tick(now + second)
    assert stuck.is_healthy
    for second in range(60 + int(STUCK_S) - 1, 60 + int(STUCK_S) + 2):
        stuck.tick(now + second)
    assert not stuck.is_healthy
