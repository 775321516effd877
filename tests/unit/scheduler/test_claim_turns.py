"""The order in which a scheduler tries to claim workers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.worker_groups.claim_turns import (
    HELD_DELAY_S,
    MAX_RETRIES,
    PACE_S,
    RETRY_DELAYS_S,
    ClaimTurns,
)
from services.scheduler.worker_groups.claimer import MAX_ATTEMPTS


@pytest.fixture
def turns() -> ClaimTurns:
    return ClaimTurns(random.Random(1))


def test_workers_that_are_new_are_tried_at_once(turns: ClaimTurns) -> None:
    for index in range(100):
        turns.add(str(index), now=5.0)
    order = [turns.next(5.0) or "" for _ in range(100)]
    assert set(order) == set(map(str, range(100)))
    assert order != sorted(order, key=int), "schedulers try them in different orders"
    assert turns.next(5.0) is None
    assert turns.seconds_to_next(5.0) is None


def test_a_lost_worker_is_tried_again_at_once_and_then_ever_more_rarely(turns: ClaimTurns) -> None:
    turns.add("w", 0.0)
    turns.next(0.0)
    turns.claimed("w")
    turns.lost("w", 10.0, has_worked=True)
    now, waits = 10.0, []
    for _ in range(7):
        seconds = turns.seconds_to_next(now)
        assert seconds is not None
        waits.append(seconds)
        now += seconds
        assert turns.next(now) == "w"
        turns.failed("w", now)
    assert waits == pytest.approx([*RETRY_DELAYS_S, 1.0, 1.0])


def test_addresses_that_do_not_answer_leave_room_for_new_ones(turns: ClaimTurns) -> None:
    """As when a host with many workers loses its power, and each attempt takes ten seconds."""
    gone = [f"gone {index}" for index in range(20)]
    for address in gone:
        turns.add(address, 0.0)
        turns.next(0.0)
        turns.claimed(address)
    for address in gone:
        turns.lost(address, 1.0, has_worked=True)
    tried = [turns.next(2.0) for _ in range(MAX_RETRIES)]
    assert set(tried) <= set(gone)
    assert MAX_RETRIES < MAX_ATTEMPTS
    assert turns.next(2.0) is None
    assert turns.seconds_to_next(2.0) is None, "the claimer waits for the end of an attempt"
    turns.add("new", 2.5)
    assert turns.seconds_to_next(2.5) == 0.0
    assert turns.next(2.5) == "new"
    turns.failed(tried[0] or "", 11.0)
    assert turns.next(11.0) in set(gone) - set(tried)
    turns.remove(tried[1] or "")
    assert turns.next(11.0) in set(gone) - set(tried)


def test_a_worker_that_is_lost_before_it_has_worked_is_not_claimed_ever_faster(turns: ClaimTurns) -> None:
    turns.add("w", 0.0)
    now, waits = 0.0, []
    for _ in range(6):
        turns.next(now)
        turns.claimed("w")
        turns.lost("w", now, has_worked=False)
        waits.append(turns.seconds_to_next(now))
        now += waits[-1] or 0.0
    assert waits == pytest.approx([*RETRY_DELAYS_S, 1.0])


def test_attempts_at_workers_of_other_schedulers_are_paced_over_all_of_them(turns: ClaimTurns) -> None:
    addresses = [str(index) for index in range(1000)]
    for address in addresses:
        turns.add(address, 0.0)
    while (found := turns.next(0.0)) is not None:
        turns.held_elsewhere(found, 0.0, was_asked=True)
    times, tried, now = [], list[str](), 0.0
    while len(tried) < 1000:
        now += turns.seconds_to_next(now) or 0.0
        if (found := turns.next(now)) is not None:
            times.append(now)
            tried.append(found)
            turns.held_elsewhere(found, now, was_asked=True)
    assert set(tried) == set(addresses), "each has its turn"
    assert all(later - earlier >= PACE_S * 0.999 for earlier, later in pairwise(times))


def test_claims_that_succeed_are_not_paced(turns: ClaimTurns) -> None:
    """A scheduler that is left alone takes over all workers."""
    for index in range(100):
        turns.add(str(index), 0.0)
    while (found := turns.next(0.0)) is not None:
        turns.held_elsewhere(found, 0.0, was_asked=True)
    now = HELD_DELAY_S
    for _ in range(100):
        address = turns.next(now)
        assert address is not None
        turns.claimed(address)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "remove", "held", "failed", "lost"]))))
def test_an_address_is_tried_until_it_is_removed_and_never_twice_at_a_time(events: list[tuple[str, str]]) -> None:
    turns, now, trying = ClaimTurns(random.Random(0)), 0.0, set[str]()
    for address, event in events:
        if event == "remove":
            turns.remove(address)
            trying.discard(address)
        elif event == "add" and not turns.knows(address):
            turns.add(address, now)
        elif address in trying:
            trying.discard(address)
            if event == "held":
                turns.held_elsewhere(address, now, was_asked=True)
            elif event == "lost":
                turns.claimed(address)
                turns.lost(address, now, has_worked=True)
            else:
                turns.failed(address, now)
        now += 0.1
        while (found := turns.next(now)) is not None:
            assert found not in trying
            assert turns.knows(found)
            trying.add(found)
    for _ in range(100):
        now += 0.1
        while (found := turns.next(now)) is not None:
            trying.add(found)
    assert trying == {address for address in "abc" if turns.knows(address)}
