"""Accusations of workers' exits that are proved or disproved in any order, and what routers are told of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from services.scheduler.core import EXIT_ALONE, ErrorKind, Failure, FinishedSequence, FinishReason, Sequence
from services.scheduler.sessions import RoutedRequest
from services.scheduler.sessions.session import QueueTimer, RouterSession, SequenceKey
from services.scheduler.worker_groups.accusations import Accusations

UNPROVED, PROVED, HELD = (EXIT_ALONE, True, False), (EXIT_ALONE, False, False), (EXIT_ALONE, False, True)
UNPROVED_AND_HELD = (EXIT_ALONE, True, True)


class Session(RouterSession):
    def __init__(self) -> None:
        super().__init__("router")
        self.told: list[tuple[int, bool, bool]] = []

    def add_worker_loss(
        self, key: SequenceKey, num_losses: int, *, is_unproved: bool = False, is_held: bool = False
    ) -> None:
        self.told.append((num_losses, is_unproved, is_held))


class Court:
    """The accusations of one sequence."""

    def __init__(self) -> None:
        self.session = Session()
        self.key = SequenceKey(self.session, 1, 0, "", QueueTimer())
        request = SimpleNamespace(key=self.key, deadline=None)
        self.sequence = cast(Sequence[RoutedRequest], SimpleNamespace(request=request, suspicion=EXIT_ALONE))
        self.failed = FinishedSequence(self.sequence, FinishReason.ERROR, Failure(ErrorKind.INTERNAL, "two exits"))
        # What the sequence is suspected of; None if it is not in a core.
        self.suspicion: int | None = 0
        self.accusations = Accusations(60.0, lambda key: self.suspicion)

    @property
    def told(self) -> list[tuple[int, bool, bool]]:
        """What the router was told since the last call."""
        told, self.session.told = self.session.told, []
        return told

    def lose(self, worker: str, boot_id: int, now: float, *, is_proved: bool = False) -> None:
        """A worker that was computing the sequence alone."""
        if self.suspicion == EXIT_ALONE:
            self.suspicion = None
            self.accusations.accuse(worker, boot_id, {}, [self.failed], now, is_proved=is_proved)
        else:
            accused = {self.key: (EXIT_ALONE, self.suspicion or 0)}
            self.suspicion = EXIT_ALONE
            self.accusations.accuse(worker, boot_id, accused, [], now, is_proved=is_proved)


@pytest.fixture
def court() -> Court:
    return Court()


@pytest.fixture
def held() -> Court:
    """Of a sequence that ran alone at the supposed exits of two workers, a and then b."""
    court = Court()
    court.lose("a", 1, now=0.0)
    court.lose("b", 2, now=1.0)
    assert court.accusations.judge(1.0) == []
    assert court.told == [UNPROVED, UNPROVED_AND_HELD]
    return court


@pytest.mark.parametrize("order", [(("a", 1), ("b", 2)), (("b", 2), ("a", 1))])
def test_two_exits_that_are_disproved_leave_no_suspicion(held: Court, order: tuple[tuple[str, int], ...]) -> None:
    (first,) = held.accusations.settle(*order[0])
    assert first.sequence is held.sequence, "it runs again"
    assert held.told == [UNPROVED]
    held.suspicion = EXIT_ALONE
    (second,) = held.accusations.settle(*order[1])
    assert (second.suspicion, second.sequence) == (0, None)
    assert held.accusations.judge(100.0) == []


@pytest.mark.parametrize(("proved", "disproved"), [("a", ("b", 2)), ("b", ("a", 1))])
def test_one_exit_that_is_proved_stays_one(held: Court, proved: str, disproved: tuple[str, int]) -> None:
    assert held.accusations.settle(proved, 7) == []
    assert held.told == [HELD]
    (acquittal,) = held.accusations.settle(*disproved)
    assert (acquittal.suspicion, acquittal.sequence) == (EXIT_ALONE, held.sequence)
    assert held.told == [PROVED]


def test_two_exits_that_are_proved_fail_it(held: Court) -> None:
    assert held.accusations.settle("b", 7) == []
    assert held.accusations.judge(2.0) == []
    assert held.accusations.settle("a", 7) == []
    assert held.accusations.judge(2.0) == [held.failed]


def test_workers_that_never_come_back_count_as_exited(held: Court) -> None:
    assert held.accusations.judge(59.0) == []
    assert held.told == []
    assert held.accusations.judge(61.5) == [held.failed]


def test_a_worker_that_says_itself_that_it_failed_needs_no_proof(court: Court) -> None:
    court.lose("a", 1, now=0.0, is_proved=True)
    court.lose("b", 2, now=1.0, is_proved=True)
    assert court.told == [PROVED, HELD]
    assert court.accusations.judge(1.0) == [court.failed]


def test_routers_hear_of_the_exits_of_sequences_that_they_have_moved(court: Court) -> None:
    court.lose("a", 1, now=0.0)
    court.suspicion = None
    assert court.told == [UNPROVED]
    assert court.accusations.settle("a", 7) == []
    assert court.told == [PROVED]


def test_a_proof_does_not_count_if_the_sequence_has_a_new_token(court: Court) -> None:
    court.lose("a", 1, now=0.0)
    court.suspicion = 0
    assert court.told == [UNPROVED]
    assert court.accusations.settle("a", 7) == []
    assert court.told == [(0, False, False)], "the router may have moved it before it got the token"


def test_a_held_sequence_stays_held_if_an_exit_beside_others_is_disproved(court: Court) -> None:
    court.suspicion = 1
    court.accusations.accuse("z", 9, {court.key: (1, 0)}, [], 0.0, is_proved=False)
    court.lose("a", 1, now=1.0)
    court.lose("b", 2, now=2.0)
    assert court.told == [(1, False, False), UNPROVED, UNPROVED_AND_HELD]
    assert court.accusations.settle("z", 9) == []
    assert court.told == []
    assert court.accusations.settle("a", 7) == []
    (acquittal,) = court.accusations.settle("b", 2)
    assert (acquittal.suspicion, acquittal.is_unproved, acquittal.sequence) == (EXIT_ALONE, False, court.sequence)


def test_an_exit_before_the_last_token_says_nothing_of_the_one_after_it(court: Court) -> None:
    court.lose("a", 1, now=0.0)
    court.suspicion = 0
    court.lose("b", 2, now=1.0)
    assert court.told == [UNPROVED, UNPROVED]
    assert court.accusations.settle("a", 1) == []
    assert court.accusations.settle("b", 7) == []
    assert court.told == [PROVED]


def test_an_exit_beside_others_that_is_disproved_leaves_the_one_alone_since(court: Court) -> None:
    court.suspicion = 1
    court.accusations.accuse("a", 1, {court.key: (1, 0)}, [], 0.0, is_proved=False)
    court.lose("b", 2, now=1.0)
    assert court.accusations.settle("a", 1) == []
    (acquittal,) = court.accusations.settle("b", 2)
    assert acquittal.suspicion == 0
