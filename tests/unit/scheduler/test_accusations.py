"""Accusations of workers' exits that are proved or disproved in any order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from services.scheduler.core import EXIT_ALONE, SUSPECT, ErrorKind, Failure, FinishedSequence, FinishReason
from services.scheduler.sessions.session import QueueTimer, SequenceKey
from services.scheduler.worker_groups.accusations import Accusations, newly_suspected

KEY: Any = "sequence"
SEQUENCE: Any = SimpleNamespace(request=SimpleNamespace(key=KEY, deadline=None))
FAILED = FinishedSequence(SEQUENCE, FinishReason.ERROR, Failure(ErrorKind.INTERNAL, "two exits"))


@pytest.fixture
def accusations() -> Accusations:
    """Of a sequence that ran alone at the supposed exits of two workers, a and then b."""
    accusations = Accusations(60.0)
    accusations.accuse("a", 1, {KEY: 0}, now=0.0)
    accusations.hold([FAILED])
    accusations.accuse("b", 2, {KEY: EXIT_ALONE}, now=1.0)
    assert accusations.judge(1.0) == []
    return accusations


class Session:
    """Of a router: keeps what it was told of sequences."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def add_worker_loss(self, key: Any, num_losses: int) -> None:
        self.told.append(num_losses)


def suspect(suspicion: int) -> Any:
    """A sequence of a router of its own."""
    key = SequenceKey(Session(), 1, 0, "", QueueTimer())  # type: ignore[arg-type]
    return SimpleNamespace(request=SimpleNamespace(key=key), suspicion=suspicion)


@pytest.mark.parametrize(
    ("suspicion", "is_proved", "told", "is_untold"),
    [(1, False, 1, False), (SUSPECT, False, SUSPECT, False), (EXIT_ALONE, True, EXIT_ALONE, False),
     (EXIT_ALONE, False, SUSPECT, True)],
)  # fmt: skip
def test_a_router_learns_of_an_exit_alone_only_once_it_is_proved(
    suspicion: int, is_proved: bool, told: int, is_untold: bool
) -> None:
    sequence = suspect(suspicion)
    key = sequence.request.key
    found, untold = newly_suspected([sequence], {}, is_proved=is_proved)
    assert (found, untold) == ({key: 0}, {key} if is_untold else set())
    assert key.session.told == [told]


@pytest.mark.parametrize(
    ("suspicion", "boot_id", "told"),
    [
        (EXIT_ALONE, 2, [EXIT_ALONE]),
        # The sequence has left.
        (None, 2, [EXIT_ALONE]),
        # It has a new token since.
        (0, 2, []),
        (EXIT_ALONE, 1, []),
        # The worker does not come back.
        (None, None, [EXIT_ALONE]),
    ],
)
def test_a_proof_is_told(suspicion: int | None, boot_id: int | None, told: list[int]) -> None:
    accusations = Accusations(60.0, lambda key: suspicion)
    key = suspect(EXIT_ALONE).request.key
    accusations.accuse("a", 1, {key: 0}, now=0.0, untold=[key])
    if boot_id is None:
        accusations.judge(61.0)
    else:
        accusations.settle("a", boot_id)
    assert key.session.told == told


@pytest.mark.parametrize("order", [(("a", 1), ("b", 2)), (("b", 2), ("a", 1))])
def test_two_exits_that_are_disproved_leave_no_suspicion(
    accusations: Accusations, order: tuple[tuple[str, int], ...]
) -> None:
    (first,) = accusations.settle(*order[0])
    assert first.sequence is SEQUENCE, "it runs again"
    (second,) = accusations.settle(*order[1])
    assert (second.suspicion, second.sequence) == (0, None)
    assert accusations.judge(100.0) == []


def test_one_exit_that_is_proved_stays_one(accusations: Accusations) -> None:
    assert accusations.settle("a", 7) == []
    (acquittal,) = accusations.settle("b", 2)
    assert (acquittal.suspicion, acquittal.sequence) == (EXIT_ALONE, SEQUENCE)


def test_two_exits_that_are_proved_fail_it(accusations: Accusations) -> None:
    assert accusations.settle("b", 7) == []
    assert accusations.judge(2.0) == []
    assert accusations.settle("a", 7) == []
    assert accusations.judge(2.0) == [FAILED]


def test_workers_that_never_come_back_count_as_exited(accusations: Accusations) -> None:
    assert accusations.judge(59.0) == []
    assert accusations.judge(61.5) == [FAILED]
