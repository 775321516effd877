"""Which sequences are accused of a worker's exit, until it is known whether its process has exited.

The end of a stream does not tell an exit of the worker's process from a cut connection. The next claim of the worker
does: another boot id proves the exit, and the same boot id disproves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.scheduler.core import FinishedSequence, Sequence
from services.scheduler.sessions import RoutedRequest, SequenceKey


class Accusations:
    """Accusations of one worker's exits, as long as they are neither proved nor disproved.

    `suspicions`: the accused sequences, with the suspicion that they had before. `held`: sequences that fail as soon as
    every exit that they are accused of is proved. They run nowhere until then, because they might end more workers.
    """

    def __init__(self) -> None:
        self.suspicions: dict[SequenceKey, int] = {}
        self.held: dict[SequenceKey, FinishedSequence[RoutedRequest]] = {}
        self._boot_id = 0

    def accuse(self, suspicions: Mapping[SequenceKey, int]) -> None:
        self.suspicions |= suspicions

    def hold(self, ends: Iterable[FinishedSequence[RoutedRequest]]) -> None:
        self.held |= {end.sequence.request.key: end for end in ends}

    def is_disproved_by(self, boot_id: int) -> bool:
        """Takes note of the process that was claimed. Returns whether it is the one that was claimed before."""
        is_same, self._boot_id = boot_id == self._boot_id, boot_id
        return is_same

    def prove(self) -> None:
        self.suspicions.clear()

    def withdraw(self) -> list[tuple[SequenceKey, int]]:
        """Removes and returns all accusations."""
        suspicions, self.suspicions = self.suspicions, {}
        return list(suspicions.items())

    def release(self, key: SequenceKey, suspicion: int) -> Sequence[RoutedRequest]:
        """Removes and returns a held sequence. If it is also accused of this worker's exit, that is now the first one
        that it is accused of, and `suspicion` is what it was suspected of before."""
        if key in self.suspicions:
            self.suspicions[key] = suspicion
        return self.held.pop(key).sequence
