"""Trials: steps in which a suspect (`losses.py`) runs alone, so that a worker's exit tells whether it is at fault.

A trial begins when all plans in flight and all preparations have ended. It ends when the suspect has the tokens that
were in flight at the last exit. Meanwhile, the other sequences keep their slots and blocks but get no rows. Between two
trials, they run for at least as many steps as the last trial took. The suspect with the most exits is tried first,
because it is closest to failing; a successful trial clears it.
"""

from __future__ import annotations

from typing import Generic

from services.scheduler.core.preparations import Preparations
from services.scheduler.core.request import RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import Sequence, Status

# Minimum number of steps between two trials in which the other sequences run.
_LEAST_REST = 8
# Maximum number of suspects that are considered for one trial.
_MAX_CONSIDERED = 4


class Trials(Generic[RequestT]):
    def __init__(self, roster: Roster[RequestT], preparations: Preparations) -> None:
        self._roster = roster
        self._preparations = preparations
        # The suspect on trial. It has begun once nothing else is in flight.
        self.current: Sequence[RequestT] | None = None
        self.has_begun = False
        self._wire_id = 0  # of the suspect once it runs
        self._first_step = 0
        self._rest_until = 0

    def candidates(self) -> list[Sequence[RequestT]]:
        """The suspects that may be tried now, the best one first. Empty while a trial is on or the others run."""
        roster = self._roster
        if self.current is not None or not roster.suspects:
            return []
        has_others = roster.running or roster.waiting or roster.num_set_aside
        if has_others and roster.turns.num_steps < self._rest_until:
            return []
        ranked = sorted(roster.suspects.values(), key=lambda suspect: (-suspect.suspicion, suspect.start_rank))
        return ranked[:_MAX_CONSIDERED]

    def choose(self, suspect: Sequence[RequestT]) -> None:
        """Lets the trial of `suspect` begin as soon as nothing else is in flight."""
        self.current = suspect
        self.has_begun = False
        self._wire_id = 0
        self._first_step = self._roster.turns.num_steps
        self._preparations.is_held = True

    def started(self) -> None:
        """Takes note that the suspect runs now."""
        assert self.current is not None
        self._wire_id = self.current.wire_id

    @property
    def is_over(self) -> bool:
        """Whether the suspect has ended, is no suspect any more, or was preempted."""
        suspect = self.current
        if suspect is None or suspect.status is Status.FINISHED or not suspect.is_suspect:
            return True
        return suspect.wire_id != self._wire_id

    def end(self) -> None:
        num_steps = self._roster.turns.num_steps
        if self.has_begun:
            self._rest_until = num_steps + max(num_steps - self._first_step, _LEAST_REST)
        self.current = None
        self._preparations.is_held = False
        self._preparations.fill_places(self._roster.is_awaited)

    def skip_rest(self) -> bool:
        """Lets the next trial begin at once, because the others have nothing to do. Returns False if it may already, or
        if there is no suspect."""
        is_resting = bool(self._roster.suspects) and self._rest_until > self._roster.turns.num_steps
        self._rest_until = 0
        return is_resting

    def forget_worker(self) -> None:
        """Ends a trial whose worker is lost. The next one may begin at once."""
        self.current = None
        self._rest_until = 0
        self._preparations.is_held = False
