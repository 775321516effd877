"""Which sequences are accused of workers' exits, until it is known whether the workers' processes have exited.

The end of a stream does not tell an exit of the worker's process from a cut connection. The next claim of the worker
does: another boot id proves the exit, and the same boot id disproves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.scheduler.core import ErrorKind, Failure, FinishedSequence, FinishReason, Sequence
from services.scheduler.sessions import RoutedRequest, SequenceKey


@dataclass(frozen=True, slots=True)
class _Exit:
    """The supposed exit of a worker's process. `suspicions`: the sequences accused of it, with the suspicion that they
    had before. `since`: when the worker was lost, in seconds."""

    boot_id: int
    suspicions: dict[SequenceKey, int]
    since: float


@dataclass(frozen=True, slots=True)
class Acquittal:
    """An accusation that is withdrawn. `suspicion`: what the sequence is suspected of without it. `sequence`: the
    sequence if it was held, and must be queued again."""

    key: SequenceKey
    suspicion: int
    sequence: Sequence[RoutedRequest] | None


class Accusations:
    """The accusations that are neither proved nor disproved, of all workers of a scheduler.

    A sequence that would fail is held until every exit that it is accused of is proved. It runs nowhere until then,
    because it might end more workers.
    """

    def __init__(self, longest_s: float) -> None:
        """`longest_s`: an exit counts as proved if the worker was not claimed again for this many seconds."""
        self._longest_s = longest_s
        self._exits: dict[str, _Exit] = {}  # by the worker's address
        self._held: dict[SequenceKey, FinishedSequence[RoutedRequest]] = {}

    def accuse(self, address: str, boot_id: int, suspicions: Mapping[SequenceKey, int], now: float) -> None:
        """Accuses sequences of the exit of the worker at `address`. `suspicions`: what each was suspected of before."""
        if suspicions:
            self._exits[address] = _Exit(boot_id, dict(suspicions), now)

    def hold(self, ends: Iterable[FinishedSequence[RoutedRequest]]) -> None:
        """Keeps sequences that fail if the exits that they are accused of are proved."""
        self._held |= {end.sequence.request.key: end for end in ends}

    def abort(self, key: SequenceKey) -> bool:
        """Forgets a held sequence. Returns False if there is no such sequence."""
        return self._held.pop(key, None) is not None

    def settle(self, address: str, boot_id: int) -> list[Acquittal]:
        """Takes note of the process that was claimed at `address`. Returns the accusations that this disproves."""
        exit_ = self._exits.pop(address, None)
        if exit_ is None or exit_.boot_id != boot_id:
            return []
        return [self._acquit(key, suspicion) for key, suspicion in exit_.suspicions.items()]

    def judge(self, now: float) -> list[FinishedSequence[RoutedRequest]]:
        """Removes and returns the held sequences that fail now: those whose exits are all proved, and those whose
        deadline is past."""
        for address, exit_ in list(self._exits.items()):
            if now - exit_.since > self._longest_s:
                del self._exits[address]
        accused = {key for exit_ in self._exits.values() for key in exit_.suspicions} if self._held else set()
        ends = [self._held.pop(key) for key in self._held.keys() - accused]
        for key, end in list(self._held.items()):
            deadline = end.sequence.request.deadline
            if deadline is not None and deadline <= now:
                failure = Failure(ErrorKind.DEADLINE_EXCEEDED, "the request's time ran out while its worker was lost")
                ends.append(FinishedSequence(self._held.pop(key).sequence, FinishReason.ERROR, failure))
        return ends

    def _acquit(self, key: SequenceKey, suspicion: int) -> Acquittal:
        end = self._held.pop(key, None)
        if end is not None:
            # The sequence is accused of two exits. Only the other accusation is left. If that one is disproved as well,
            # the sequence is as suspect as it was before the first.
            for exit_ in self._exits.values():
                if key in exit_.suspicions:
                    exit_.suspicions[key] = min(suspicion, exit_.suspicions[key])
        return Acquittal(key, suspicion, None if end is None else end.sequence)


def newly_suspected(
    suspects: Iterable[Sequence[RoutedRequest]], before: Mapping[SequenceKey, int]
) -> dict[SequenceKey, int]:
    """Returns the sequences that are suspected of more than `before`, with what they were suspected of then. Tells
    their routers."""
    found = {}
    for sequence in suspects:
        key = sequence.request.key
        if sequence.suspicion != before.get(key, 0):
            found[key] = before.get(key, 0)
            key.session.add_worker_loss(key, sequence.suspicion)
    return found
