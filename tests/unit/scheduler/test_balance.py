"""Schedulers that share workers end up with equal numbers of them, give or take one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.worker_groups.balance import gives_away


class Fleet:
    """The protocol without its messages: `owners[w]` is the scheduler that owns worker w."""

    def __init__(self, num_schedulers: int, owners: list[int | None]) -> None:
        self.num_schedulers = num_schedulers
        self.owners = owners
        self.num_given_away = 0

    def count(self, scheduler: int) -> int:
        return self.owners.count(scheduler)

    @property
    def counts(self) -> list[int]:
        return [self.count(scheduler) for scheduler in range(self.num_schedulers)]

    def claim(self, contender: int, worker: int) -> None:
        owner = self.owners[worker]
        if owner is None:
            self.owners[worker] = contender
        elif owner != contender and gives_away(self.count(owner), self.count(contender)):
            self.owners[worker] = contender
            self.num_given_away += 1

    def take_turns(self, shuffle: random.Random) -> None:
        """Every scheduler tries every worker once, in any order."""
        turns = [(s, w) for s in range(self.num_schedulers) for w in range(len(self.owners))]
        shuffle.shuffle(turns)
        for scheduler, worker in turns:
            self.claim(scheduler, worker)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    num_schedulers = draw(st.integers(1, 8))
    owner = st.none() | st.integers(0, num_schedulers - 1)
    return Fleet(num_schedulers, draw(st.lists(owner, max_size=24)))


def settle(fleet: Fleet, shuffle: random.Random) -> None:
    while True:
        before = list(fleet.owners)
        fleet.take_turns(shuffle)
        if fleet.owners == before:
            return


@given(fleets(), st.randoms(use_true_random=False))
def test_numbers_of_workers_become_equal_and_then_nothing_moves(fleet: Fleet, shuffle: random.Random) -> None:
    settle(fleet, shuffle)
    assert None not in fleet.owners, "no worker is left without a scheduler"
    assert max(fleet.counts) - min(fleet.counts) <= 1
    moved = fleet.num_given_away
    for _ in range(3):
        fleet.take_turns(shuffle)
    assert fleet.num_given_away == moved


@given(fleets(), st.randoms(use_true_random=False))
def test_no_more_workers_move_than_must(fleet: Fleet, shuffle: random.Random) -> None:
    """Each move brings two numbers closer together, so a worker never moves for nothing."""
    while None in fleet.owners:
        fleet.claim(shuffle.randrange(fleet.num_schedulers), fleet.owners.index(None))
    squares = sum(count**2 for count in fleet.counts)
    for _ in range(100 if fleet.owners else 0):
        moved = fleet.num_given_away
        fleet.claim(shuffle.randrange(fleet.num_schedulers), shuffle.randrange(len(fleet.owners)))
        after = sum(count**2 for count in fleet.counts)
        assert (after < squares) == (fleet.num_given_away > moved)
        squares = after


@given(fleets(), st.data())
def test_workers_of_a_lost_scheduler_are_taken_over_and_it_gets_its_share_back(
    fleet: Fleet, data: st.DataObject
) -> None:
    shuffle = data.draw(st.randoms(use_true_random=False))
    settle(fleet, shuffle)
    fleet.num_schedulers += 1  # one is added
    settle(fleet, shuffle)
    assert max(fleet.counts) - min(fleet.counts) <= 1
    lost = fleet.num_schedulers - 1
    fleet.owners = [None if owner == lost else owner for owner in fleet.owners]
    fleet.num_schedulers -= 1
    settle(fleet, shuffle)
    assert sum(fleet.counts) == len(fleet.owners)
    assert max(fleet.counts) - min(fleet.counts) <= 1
