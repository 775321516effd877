"""Requeues the sequences of a lost worker, and finds the sequences that might have crashed it.

A sequence that crashes its workers must not make other sequences fail, too, and a sequence that only happened to be on
a worker that was killed must not fail at all. So a sequence is at fault only for exits that happen while it
runs alone, and two such exits fail it. A sequence that was computed at two exits in a row is a suspect: it runs
alone (`trials.py`). All of this is forgotten as soon as the sequence has the tokens that were in flight at the exit.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Sequence as Items

from services.scheduler.core.outcome import FinishedSequence
from services.scheduler.core.request import Preparation, RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import EXIT_ALONE, SUSPECT, ErrorKind, Failure, FinishReason, Sequence
from services.scheduler.core.turns import Turn


def lose_worker(
    roster: Roster[RequestT], in_flight_wire_ids: set[int], being_made: Items[Preparation], *, is_exit: bool
) -> list[FinishedSequence[RequestT]]:
    """Moves the running sequences back to the queue. `is_exit`: whether the worker's process ended unexpectedly. If so,
    accuses the sequences that the worker was computing, and those that need `being_made`, the preparations that the
    worker may have been making. Sequences at fault for two exits fail and are returned.
    """
    accused = _accused(roster, in_flight_wire_ids, being_made) if is_exit else []
    is_alone = len(in_flight_wire_ids) + len(being_made) == 1
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
    roster: Roster[RequestT], wire_ids: Container[int], being_made: Items[Preparation]
) -> list[Sequence[RequestT]]:
    computed = [sequence for sequence in roster.running if sequence.wire_id in wire_ids]
    set_aside = [sequence for preparation in being_made for sequence in roster.waiting_for(preparation)]
    suspects = [sequence for sequence in roster.suspects.values() if sequence.needs in being_made]
    return [*computed, *set_aside, *suspects]


def _give_up(roster: Roster[RequestT], sequence: Sequence[RequestT]) -> FinishedSequence[RequestT]:
    roster.remove(sequence)
    # It starts at once if it is adopted again, because its worker did not exit after all.
    sequence.turn = Turn(0, sequence.turn.is_first)
    message = "A worker exited twice while it worked on this request alone."
    failure = Failure(ErrorKind.INTERNAL, message, is_blamed=True)
    return FinishedSequence(sequence, FinishReason.ERROR, failure)
