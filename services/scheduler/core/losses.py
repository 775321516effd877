"""Requeues the sequences of a lost worker, and finds the sequences that might have crashed it.

A sequence that crashes its workers must not make other sequences fail, too, and a sequence that only happened to be on
a worker that was killed must not fail at all. So a sequence is at fault only for exits that happen while it
runs alone, and two such exits fail it. A sequence that was computed at two exits in a row is a suspect: it runs
alone (`trials.py`). All of this is forgotten as soon as the sequence has the tokens that were in flight at the exit.
"""

from __future__ import annotations

from collections.abc import Container

from services.scheduler.core.outcome import FinishedSequence
from services.scheduler.core.request import Preparation, RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import EXIT_ALONE, SUSPECT, ErrorKind, Failure, FinishReason, Sequence
from services.scheduler.core.turns import Turn


def lose_worker(
    roster: Roster[RequestT], in_flight_wire_ids: set[int], preparing: Preparation | None, *, is_exit: bool
) -> list[FinishedSequence[RequestT]]:
    """Moves the running sequences back to the queue. `is_exit`: whether the worker's process ended unexpectedly. If so,
    accuses the sequences that the worker was computing, and those that need `preparing`, the preparation that the
    worker was making. Sequences at fault for two exits fail and are returned.
    """
    accused = _accused(roster, in_flight_wire_ids, preparing) if is_exit else []
    is_alone = len(in_flight_wire_ids) + (preparing is not None) == 1
    failed = []
    for sequence in accused:
        if is_alone and sequence.suspicion >= EXIT_ALONE:
            failed.append(sequence)
        elif is_alone:
            sequence.accuse(EXIT_ALONE)
        elif sequence.suspicion < EXIT_ALONE:
            sequence.accuse(min(sequence.suspicion + 1, SUSPECT))
    finished = [_give_up(roster, sequence) for sequence in failed]
    for sequence in reversed(roster.running.copy()):
        roster.requeue(sequence)
    return finished


def _accused(
    roster: Roster[RequestT], wire_ids: Container[int], preparing: Preparation | None
) -> list[Sequence[RequestT]]:
    computed = [sequence for sequence in roster.running if sequence.wire_id in wire_ids]
    if preparing is None:
        return computed
    suspects = [sequence for sequence in roster.suspects.values() if sequence.request.needs == preparing]
    return [*computed, *roster.waiting_for(preparing), *suspects]


def _give_up(roster: Roster[RequestT], sequence: Sequence[RequestT]) -> FinishedSequence[RequestT]:
    roster.remove(sequence)
    # It starts at once if it is adopted again, because its worker did not exit after all.
    sequence.turn = Turn(0, sequence.turn.is_first)
    message = "A worker exited twice while it worked on this request alone."
    failure = Failure(ErrorKind.INTERNAL, message, is_blamed=True)
    return FinishedSequence(sequence, FinishReason.ERROR, failure)
