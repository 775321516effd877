"""What schedulers suspect a sequence of: to have ended the workers that computed it (WorkerLoss).

A scheduler first sees only that its stream to a worker has ended. It learns later whether the worker has exited. The
sequence may have moved to another scheduler by then. That one counts an exit that it has not seen, and fails the
sequence at the next exit. So the router remembers how the first exit turned out, and lets the sequence fail only if
that was an exit.
"""

from __future__ import annotations

from dataclasses import dataclass

# Values of WorkerLoss.num_losses. SUSPECT: the sequence runs alone. EXIT_ALONE: a worker has exited that computed it
# alone. With the next one, the sequence fails.
SUSPECT = 2
EXIT_ALONE = 3


@dataclass(slots=True, eq=False)
class Suspicion:
    """A sequence's last WorkerLoss. `num_tokens`: number of tokens that the sequence had; the next one ends the
    suspicion. `is_unproved`: whether a scheduler will tell later whether the worker has exited."""

    num_losses: int = 0
    num_tokens: int = 0
    is_unproved: bool = False

    def settle(self, num_losses: int) -> None:
        """Takes note of how the exit turned out. `num_losses`: EXIT_ALONE if the worker has exited."""
        self.num_losses = num_losses
        self.is_unproved = False

    def drop(self) -> None:
        """The scheduler that knows is lost. Without a proof, the exit does not count, but the sequence runs alone."""
        if self.is_unproved:
            self.settle(SUSPECT)
