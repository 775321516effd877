"""Sequences whose worker sends nothing, and is not given up yet: where they go, and where not."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.scheduler.config import SchedulerConfig
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.worker_group import WorkerGroup
from services.scheduler.worker_groups.worker_link import Loss
from tests.unit.scheduler.test_worker_groups import Link, group, plan_in_flight, request, scheduler, tick


def unfinished(groups: list[WorkerGroup]) -> list[int]:
    return [one.num_unfinished for one in groups]


async def silent(
    number: int, *, beside: int, max_tokens: int = 10
) -> tuple[Fleet, list[WorkerGroup], list[Link], float]:
    """Returns so many groups with a plan in flight each, then `beside` idle ones; their links; and the time."""
    fleet = Fleet("s", SchedulerConfig())
    groups = [group(fleet, scheduler(), is_ready=True) for _ in range(number + beside)]
    now = tick(fleet, time.monotonic(), 1.0)
    links = [await plan_in_flight(one, index, max_tokens=max_tokens) for index, one in enumerate(groups[:number])]
    return fleet, groups, links, now


async def test_a_late_worker_gets_no_further_plan() -> None:
    """A plan that only ends the sequences that have moved would give it more time, and make it look healthy."""
    fleet, groups, links, now = await silent(2, beside=1, max_tokens=1)
    for one in groups[:2]:
        assert one.core is not None
        one.steps._patience._first_of_a_kind_s = 30.0
    sent = [link.num_sent for link in links]
    seen = []
    for _ in range(60):
        now = tick(fleet, now, 0.1)
        await asyncio.sleep(0)  # what is due runs
        seen.append([one.silence > 1.0 for one in groups[:2]])
    assert unfinished(groups) == [0, 0, 2]
    assert [link.num_sent for link in links] == sent
    assert seen[-1] == [True, True]
    late_from = seen.index([True, True])
    assert seen[late_from:] == [[True, True]] * (60 - late_from)
    assert fleet.least_loaded() is groups[2]


async def test_sequences_of_a_lost_worker_go_to_no_silent_one() -> None:
    fleet, groups, _, now = await silent(2, beside=2)
    now = tick(fleet, now, 3.5)
    assert unfinished(groups) == [0, 0, 1, 1]
    groups[2]._on_lost(Loss.BROKEN)
    assert unfinished(groups) == [0, 0, 0, 2]
    # If only silent ones are left, they go there, and may leave as soon as somebody else can take them.
    groups[3]._on_lost(Loss.BROKEN)
    assert sum(unfinished(groups[:2])) == 2
    groups[3].ready.set()
    tick(fleet, now, 11.0)
    assert unfinished(groups) == [0, 0, 0, 2]


@pytest.mark.parametrize("tenth", range(11))
async def test_nothing_moves_to_a_worker_that_is_given_up_in_the_same_moment(tenth: int) -> None:
    fleet, groups, links, now = await silent(3, beside=0)
    now = tick(fleet, now, 20.0)
    fleet._overseer._next_offers = {number: at + tenth / 10 for number, at in fleet._overseer._next_offers.items()}
    while not any(link.is_cancelled for link in links):
        now = tick(fleet, now, 0.1)
    assert unfinished(groups) == [1, 1, 1]


async def test_no_more_sequences_move_than_have_a_place() -> None:
    """The others can go on with their blocks, if their workers come back."""
    fleet, groups, _, now = await silent(3, beside=1)
    for one in groups[:3]:
        assert one.core is not None
        for number in range(3):
            one.core.submit(request(10 + number))
    tick(fleet, now, 5.0)
    assert groups[3].core is not None
    assert (sum(unfinished(groups)), unfinished(groups)[3]) == (12, groups[3].core.config.max_num_seqs)


async def test_a_stall_that_no_router_has_read_is_taken_back_when_the_sequence_moves() -> None:
    fleet, groups, _, now = await silent(2, beside=1)
    sessions = [one.request.key.session for group in groups[:2] if group.core for one in group.core.sequences]
    now = tick(fleet, now, 2.5)
    assert [len(session._frame.build().stalls) for session in sessions] == [1, 1]
    tick(fleet, now, 1.0)
    frames = [session._frame.build() for session in sessions]
    assert unfinished(groups) == [0, 0, 2]
    assert [(len(frame.stalls), len(frame.interruptions)) for frame in frames] == [(0, 1), (0, 1)]
