"""Accusations of workers' exits that are proved or disproved in any order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from services.scheduler.core import EXIT_ALONE, ErrorKind, Failure, FinishedSequence, FinishReason
from services.scheduler.worker_groups.accusations import Accusations

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
