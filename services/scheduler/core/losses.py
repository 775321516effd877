"""Requeues the sequences of a lost worker, and finds the sequences that might have crashed it.

A sequence that crashes its workers must not make other sequences fail, too. So a sequence that has lost several workers
in a row is a suspect: it runs alone. If a suspect loses its worker, it fails.
"""

from __future__ import annotations

from collections.abc import Container

from services.scheduler.core.outcome import FinishedSequence
from services.scheduler.core.request import Preparation, RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import ErrorKind, Failure, FinishReason, Sequence

# Limits on the number of workers that a sequence loses in a row, without a new token in between. After
# _LOSSES_BEFORE_SUSPICION losses, the sequence is a suspect: nothing else runs or is prepared beside it until it has a
# new token. After _LOSSES_BEFORE_FAILURE losses, it fails.
_LOSSES_BEFORE_SUSPICION = 2
_LOSSES_BEFORE_FAILURE = 3


def is_suspect(sequence: Sequence[RequestT]) -> bool:
    """Whether the sequence might have crashed its workers."""
    return sequence.num_losses >= _LOSSES_BEFORE_SUSPICION


def lose_worker(
    roster: Roster[RequestT], in_flight_wire_ids: Container[int], preparing: Preparation | None
) -> list[FinishedSequence[RequestT]]:
    """Moves the running sequences back to the queue. Counts a loss for the sequences that the worker was computing, and
    for those that wait for `preparing`, the preparation that the worker was making. Sequences with too many losses fail
    and are returned.
    """
    finished = []
    for sequence in [] if preparing is None else roster.waiting_for(preparing):
        sequence.num_losses += 1
        if sequence.num_losses >= _LOSSES_BEFORE_FAILURE:
            finished.append(_give_up(roster, sequence))
    for sequence in reversed(roster.running.copy()):
        sequence.num_losses += sequence.wire_id in in_flight_wire_ids
        if sequence.num_losses >= _LOSSES_BEFORE_FAILURE:
            finished.append(_give_up(roster, sequence))
        else:
            roster.requeue(sequence)
    return finished


def _give_up(roster: Roster[RequestT], sequence: Sequence[RequestT]) -> FinishedSequence[RequestT]:
    roster.remove(sequence)
    message = f"{sequence.num_losses} workers in a row were lost while they worked on this request"
    return FinishedSequence(sequence, FinishReason.ERROR, Failure(ErrorKind.INTERNAL, message))
