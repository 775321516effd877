"""Groups of one scheduler: which sequences move between them, and when a worker counts as hung."""

from __future__ import annotations

import time
from array import array
from types import SimpleNamespace
from typing import cast

import pytest

from services.scheduler.config import SchedulerConfig
from services.scheduler.core import StepPlan
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.request import Generate
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.sessions.frame import FrameBuilder
from services.scheduler.sessions.routed_request import RoutedRequest
from services.scheduler.sessions.session import RouterSession
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.worker_group import WorkerGroup
from services.scheduler.worker_groups.worker_link import Loss, WorkerLink
from shared import clock


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
    lost._on_lost(Loss.BROKEN)
    assert [group.num_unfinished for group in (lost, small, large)] == [1, 1, 1]


async def test_time_in_which_the_scheduler_was_stopped_is_not_held_against_a_lost_worker() -> None:
    fleet = Fleet("s", SchedulerConfig(worker_timeout=10.0))
    lost = group(fleet, scheduler(), is_ready=True)
    assert lost.core is not None
    lost.core.submit(request(1))
    lost._on_lost(Loss.BROKEN)
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
    lost._on_lost(Loss.BROKEN)
    now = time.monotonic()
    for quarter in range(37):
        lost.tick(now + quarter / 4)
        lost._on_lost(Loss.BROKEN)
    assert lost.steps.silent_s == pytest.approx(9.0, abs=0.5)


async def test_a_scheduler_that_was_stopped_finds_its_worker_healthy() -> None:
    """Its health may be asked for before the first tick after the pause."""
    fleet = Fleet("s", SchedulerConfig(step_timeout=5.0))
    stuck = group(fleet, scheduler(), is_ready=True)
    now = time.monotonic()
    stuck.tick(now)
    await plan_in_flight(stuck, 1)
    with clock.replaced_by(lambda: now + 60.0):
        assert stuck.is_healthy
    stuck.tick(now + 60.0)
    assert stuck.is_healthy
    for tenth in range(1, 40):
        stuck.tick(now + 60.0 + tenth / 10)
    assert stuck.is_healthy
    for tenth in range(40, 60):
        stuck.tick(now + 60.0 + tenth / 10)
    assert not stuck.is_healthy


class Link:
    """Stands for the stream to a worker that answers nothing."""

    def __init__(self) -> None:
        self.hello = SimpleNamespace(boot_id=1, step_seconds=0.0)
        self.num_sent = 0
        # When the worker is given up, as it was told with the last plan.
        self.late_after_s = 0.0
        self.is_cancelled = False

    def send(self, plan: StepPlan[RoutedRequest], late_after_s: float) -> None:
        self.num_sent += 1
        self.late_after_s = late_after_s

    def cancel(self) -> None:
        self.is_cancelled = True


async def plan_in_flight(group: WorkerGroup, sequence_id: int, *, is_known: bool = True, max_tokens: int = 10) -> Link:
    """Sends a plan to the group's worker, of a kind that the worker has run before if `is_known`."""
    link = Link()
    assert group.core is not None
    group.steps.begin(cast(WorkerLink, link), group.core)
    group.core.submit(request(sequence_id, max_tokens))
    group.steps.pump()
    assert link.num_sent
    if is_known:
        group.steps._patience._known |= {kind for kind, _ in group.steps._patience._in_flight}
    return link


def tick(fleet: Fleet, start: float, seconds: float) -> float:
    """Lets the time pass by in which the scheduler ticks as usual. Returns the time after it."""
    for tenth in range(round(10 * seconds)):
        fleet.tick(start + tenth / 10)
    return start + seconds


async def test_a_worker_that_sends_nothing_for_two_seconds_is_given_up() -> None:
    fleet = Fleet("s", SchedulerConfig())
    hung, idle = (group(fleet, scheduler(), is_ready=True) for _ in range(2))
    now = tick(fleet, time.monotonic(), 1.0)
    link = await plan_in_flight(hung, 1)
    now = tick(fleet, now, 1.9)
    assert not link.is_cancelled
    assert fleet.least_loaded() is idle
    tick(fleet, now, 0.4)
    assert link.is_cancelled
    assert not fleet.is_struggling


async def test_a_scheduler_is_slow_before_a_worker_is_late() -> None:
    fleet = Fleet("s", SchedulerConfig())
    late = group(fleet, scheduler(), is_ready=True)
    group(fleet, scheduler(), is_ready=True)
    now = tick(fleet, time.monotonic(), 1.0)
    link = await plan_in_flight(late, 1)
    now = tick(fleet, now, 0.9)
    assert not fleet.is_slow
    now = tick(fleet, now, 0.2)
    assert fleet.is_slow
    assert not link.is_cancelled


async def test_a_step_that_should_take_long_gets_five_times_its_time() -> None:
    fleet = Fleet("s", SchedulerConfig())
    slow = group(fleet, scheduler(), is_ready=True)
    assert slow.core is not None
    for num_tokens in (1, 3, 8) * 4:
        slow.core.step_times.observe(num_tokens, num_tokens, 4.0)
    now = tick(fleet, time.monotonic(), 1.0)
    link = await plan_in_flight(slow, 1)
    num_steps = slow.core.num_in_flight
    # The kind of this step was new when it was sent.
    assert link.late_after_s == 30.0
    now = tick(fleet, now, num_steps * 20.0 - 4.0)
    assert not link.is_cancelled
    tick(fleet, now, 8.0)
    assert link.is_cancelled


async def test_the_first_step_of_its_kind_gets_more_time() -> None:
    fleet = Fleet("s", SchedulerConfig())
    cold = group(fleet, scheduler(), is_ready=True)
    now = tick(fleet, time.monotonic(), 1.0)
    link = await plan_in_flight(cold, 1, is_known=False)
    now = tick(fleet, now, 30.0)
    assert not link.is_cancelled
    tick(fleet, now, 3.0)
    assert link.is_cancelled


async def test_a_scheduler_whose_workers_all_fall_silent_suspects_itself() -> None:
    fleet = Fleet("s", SchedulerConfig())
    groups = [group(fleet, scheduler(), is_ready=True) for _ in range(2)]
    now = tick(fleet, time.monotonic(), 1.0)
    links = [await plan_in_flight(group, index) for index, group in enumerate(groups)]
    now = tick(fleet, now, 20.0)
    assert fleet.is_struggling
    assert not any(link.is_cancelled for link in links)
    # One answers again: the other one is then at fault.
    groups[0].steps.silent_s = 0.0
    tick(fleet, now, 0.2)
    assert [link.is_cancelled for link in links] == [False, True]
    assert not fleet.is_struggling


def offers_of(group: WorkerGroup) -> list[int]:
    """How many offers of each of the group's sequences wait for the routers. Takes them."""
    assert group.core is not None
    sessions = [one.request.key.session for one in group.core.sequences]
    offers = [len(session._frame.build().stalls) for session in sessions]
    for session in sessions:
        session._frame = FrameBuilder()
    return offers


async def test_a_scheduler_that_suspects_itself_offers_what_stands_still() -> None:
    fleet = Fleet("s", SchedulerConfig())
    silent = [group(fleet, scheduler(), is_ready=True) for _ in range(2)]
    at_work = group(fleet, scheduler(), is_ready=True)
    now = tick(fleet, time.monotonic(), 1.0)
    for index, one in enumerate([*silent, at_work]):
        await plan_in_flight(one, index)
    assert silent[0].core is not None
    silent[0].core.submit(request(7))
    for tenth in range(19):
        at_work.steps.silent_s = 0.0
        now = tick(fleet, now, 0.1)
        assert not fleet.is_struggling, tenth
    offers = []
    for _ in range(20):
        at_work.steps.silent_s = 0.0
        now = tick(fleet, now, 0.1)
        offers.append([*map(offers_of, silent), offers_of(at_work)])
    assert fleet.is_struggling
    # At once to other schedulers, those that wait as well. What these have not taken a second later goes to the worker
    # that answers.
    moves = [one for one, before in zip(offers, [None, *offers], strict=False) if one != before]
    none, moved = [[0, 0], [0], [0]], [[], [], [0, 0, 0, 0]]
    assert moves in ([[[1, 1], [1], [0]], none, moved], [none, [[1, 1], [1], [0]], none, moved])


async def test_a_sequence_moves_once_between_silent_workers_until_it_has_a_new_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would move to and fro between workers that are all slow."""
    monkeypatch.setattr("shared.stall_moves.PAUSE_SECONDS", 0.0)
    fleet = Fleet("s", SchedulerConfig())
    silent = [group(fleet, scheduler(), is_ready=True) for _ in range(2)]
    idle = group(fleet, scheduler(), is_ready=True)
    now = tick(fleet, time.monotonic(), 1.0)
    for index, one in enumerate(silent):
        await plan_in_flight(one, index)
    now = tick(fleet, now, 3.5)
    assert [one.num_unfinished for one in (*silent, idle)] == [0, 0, 2]
    # Its worker becomes silent, too, and one of the others answers again.
    link = Link()
    assert idle.core is not None
    idle.steps.begin(cast(WorkerLink, link), idle.core)
    idle.steps.pump()
    assert link.num_sent
    idle.steps._patience._known |= {kind for kind, _ in idle.steps._patience._in_flight}
    for _ in range(50):
        silent[0].steps.silent_s = 0.0
        now = tick(fleet, now, 0.1)
    assert [one.num_unfinished for one in (*silent, idle)] == [0, 0, 2]
    for sequence in idle.core.sequences:
        sequence.request.stall_moves.num_tokens -= 1  # as if it had a new token
    for _ in range(20):
        silent[0].steps.silent_s = 0.0
        now = tick(fleet, now, 0.1)
    assert [one.num_unfinished for one in (*silent, idle)] == [2, 0, 0]


async def test_a_second_silent_worker_that_cannot_be_given_up_yet_loses_its_sequences_at_once() -> None:
    fleet = Fleet("s", SchedulerConfig())
    groups = [group(fleet, scheduler(), is_ready=True) for _ in range(3)]
    now = tick(fleet, time.monotonic(), 1.0)
    first = await plan_in_flight(groups[0], 0)
    now = tick(fleet, now, 2.5)
    assert first.is_cancelled
    groups[0].steps.end()  # as its stream's end does
    groups[0].ready.clear()
    second = await plan_in_flight(groups[1], 1)
    now = tick(fleet, now, 1.5)
    assert (groups[1].num_unfinished, fleet.is_struggling) == (1, False)
    now = tick(fleet, now, 1.0)
    assert [one.num_unfinished for one in groups[1:]] == [0, 1]
    # Nothing stands still any more, so routers need not avoid the scheduler.
    assert (second.is_cancelled, fleet.is_struggling) == (False, False)
    tick(fleet, now, 8.0)
    assert second.is_cancelled


def test_a_sequence_that_runs_again_before_the_router_reads_is_not_offered() -> None:
    session = RouterSession("r")
    still, again = (session.add_sequence(sequence_id, 0) for sequence_id in (1, 2))
    session.add_stall(still)
    session.add_stall(again)
    session.add_token(again, 0, 5, None)
    assert [stall.sequence_id for stall in session._frame.build().stalls] == [1]


async def test_what_stands_still_a_little_later_is_offered_as_soon() -> None:
    fleet = Fleet("s", SchedulerConfig())
    groups = [group(fleet, scheduler(), is_ready=True) for _ in range(2)]
    now = tick(fleet, time.monotonic(), 1.0)
    for index, one in enumerate(groups):
        await plan_in_flight(one, index)
    now = tick(fleet, now, 0.3)
    groups[1].steps.silent_s = 0.0
    now = tick(fleet, now, 1.9)
    assert [offers_of(one) for one in groups] == [[1], [0]]
    tick(fleet, now, 0.4)
    assert [offers_of(one) for one in groups] == [[0], [1]]


async def test_a_scheduler_offers_nothing_of_one_silent_worker() -> None:
    fleet = Fleet("s", SchedulerConfig())
    silent = group(fleet, scheduler(), is_ready=True)
    now = tick(fleet, time.monotonic(), 1.0)
    link = await plan_in_flight(silent, 1)
    tick(fleet, now, 3.0)
    assert link.is_cancelled
    assert offers_of(silent) == [0]


async def test_workers_that_stay_silent_for_long_are_given_up_one_by_one() -> None:
    """Half a minute after they became late, also those whose step is the first of its kind."""
    fleet = Fleet("s", SchedulerConfig())
    groups = [group(fleet, scheduler(), is_ready=True) for _ in range(4)]
    now = tick(fleet, time.monotonic(), 1.0)
    links = [await plan_in_flight(one, index, is_known=index > 1) for index, one in enumerate(groups)]
    given_up: dict[int, int] = {}
    for second in range(80):
        now = tick(fleet, now, 1.0)
        for index, link in enumerate(links):
            if link.is_cancelled and index not in given_up:
                given_up[index] = second
                groups[index].steps.end()  # as its stream's end does
    # The limits are 30, 30, 2 and 2 s. The last one is late alone.
    assert given_up == {2: 32, 3: 42, 0: 60, 1: 70}


async def test_one_worker_is_given_up_in_ten_seconds() -> None:
    fleet = Fleet("s", SchedulerConfig())
    first, second = (group(fleet, scheduler(), is_ready=True) for _ in range(2))
    now = tick(fleet, time.monotonic(), 1.0)
    one = await plan_in_flight(first, 1)
    now = tick(fleet, now, 2.4)
    assert one.is_cancelled
    first.ready.clear()
    first.steps.end()
    other = await plan_in_flight(second, 2)
    now = tick(fleet, now, 9.0)
    assert not other.is_cancelled
    tick(fleet, now, 1.5)
    assert other.is_cancelled
