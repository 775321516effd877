"""The rules for moving a sequence away from a worker that sends nothing (ADR 38). Routers move sequences to other
schedulers, and schedulers to their other workers; both keep these rules."""

from __future__ import annotations

from dataclasses import dataclass

# Least seconds between two such moves of one sequence.
PAUSE_SECONDS = 10.0


@dataclass(slots=True)
class StallMoves:
    """The moves of one sequence. `last_at`: when it was last moved, in monotonic seconds. `num_tokens`: its number of
    tokens then."""

    last_at: float = float("-inf")
    num_tokens: int = -1

    def may_move(self, now: float, num_tokens: int) -> bool:
        """Whether a sequence with `num_tokens` tokens may be moved. If every worker is slow, it would move to and fro
        and never get far, so it must wait PAUSE_SECONDS after the last move. It must also have a new token since then:
        it may itself be what silences workers, and if a worker exits that it has left, nothing is held against it."""
        return num_tokens > self.num_tokens and now >= self.last_at + PAUSE_SECONDS

    def moved(self, now: float, num_tokens: int) -> None:
        self.last_at = now
        self.num_tokens = num_tokens

    def lost_worker(self) -> None:
        """Takes note that the worker was lost to which the sequence was moved. It needs no new token for the next move:
        it did not leave that worker."""
        self.num_tokens = -1
