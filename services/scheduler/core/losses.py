"""Workers that are lost, and the sequences they may have died of.

A sequence that kills its workers is found, and those beside it go on: one that loses several in a row is a suspect,
tried apart from all others, and then given up.
"""

from __future__ import annotations

from collections.abc import Container

from .outcome import FinishedSequence
from .request import Preparation, RequestT
from .roster import Roster
from .sequence import ErrorKind, Failure, FinishReason, Sequence

# Losses of a worker in a row, without a new token, after which a sequence is a suspect: nothing is prepared and nobody
# runs beside it until it brings one; and after which it fails.
_LOSSES_BEFORE_SUSPICION = 2
_LOSSES_BEFORE_FAILURE = 3


def is_suspect(sequence: Sequence[RequestT]) -> bool:
    """Whether its workers may have died of it."""
    return sequence.num_losses >= _LOSSES_BEFORE_SUSPICION


def lose_worker(
    roster: Roster[RequestT], in_flight_wire_ids: Container[int], preparing: Preparation | None
) -> list[FinishedSequence[RequestT]]:
    """Counts the loss against those that the worker computed, and those that wait for what it was `preparing`. Running
    ones wait to be planned anew, but for those lost too often, which end; these are returned.
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
