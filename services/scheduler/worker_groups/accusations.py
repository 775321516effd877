"""Which sequences are accused of workers' exits, until it is known whether the workers' processes have exited.

The end of a stream does not tell an exit of the worker's process from a cut connection. The worker's answer to the next
claim does, also if it refuses the claim: another boot id proves the exit, and the same boot id disproves it.

If a sequence ran alone, its router is told at once, and again when the exit is proved or disproved. By then, the router
may have moved the sequence to another scheduler. That scheduler cannot know how the exit turned out, so the router
remembers it (services/router/dispatch/suspicion.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from services.scheduler.core import EXIT_ALONE, ErrorKind, Failure, FinishedSequence, FinishReason, Sequence
from services.scheduler.sessions import RoutedRequest, SequenceKey


@dataclass(frozen=True, slots=True)
class _Exit:
    """The supposed exit of a worker's process. `before`: the sequences accused of it, with what they were suspected of
    before. `alone`: those among them that ran alone. `since`: when the worker was lost, in seconds."""

    boot_id: int
    before: dict[SequenceKey, int]
    alone: set[SequenceKey]
    since: float


@dataclass(frozen=True, slots=True)
class Acquittal:
    """An accusation that is withdrawn. `suspicion`: what the sequence is suspected of without it. `is_unproved`:
    whether that is an exit alone that is not proved. `sequence`: the sequence if it was held, and must be queued
    again."""

    key: SequenceKey
    suspicion: int
    is_unproved: bool
    sequence: Sequence[RoutedRequest] | None


class Accusations:
    """The accusations that are neither proved nor disproved, of all workers of a scheduler.

    A sequence that would fail is held until every exit that it is accused of is proved. It runs nowhere until then,
    because it might end more workers.
    """

    def __init__(self, longest_s: float, suspicion_of: Callable[[SequenceKey], int | None]) -> None:
        """`longest_s`: an exit counts as proved if the worker has answered no claim for this many seconds.
        `suspicion_of`: returns how much a sequence is suspected that waits or runs in this scheduler; None if it does
        neither."""
        self._longest_s = longest_s
        self._suspicion_of = suspicion_of
        self._exits: dict[str, _Exit] = {}  # by the worker's address
        self._held: dict[SequenceKey, FinishedSequence[RoutedRequest]] = {}

    def accuse(
        self,
        address: str,
        boot_id: int,
        suspicions: Mapping[SequenceKey, tuple[int, int]],
        failed: Iterable[FinishedSequence[RoutedRequest]],
        now: float,
        *,
        is_proved: bool,
    ) -> None:
        """Accuses sequences of the exit of the worker at `address`, and tells their routers. `suspicions`: what each is
        suspected of now, and what before. `failed`: those that fail if the exits that they are accused of are proved.
        `is_proved`: whether the worker has said itself that it failed."""
        before = {key: last for key, (_, last) in suspicions.items()}
        alone = {key for key, (suspicion, _) in suspicions.items() if suspicion == EXIT_ALONE}
        for key, (suspicion, last) in suspicions.items():
            if not last:
                self._forget(key)
            key.session.add_worker_loss(key, suspicion, is_unproved=key in alone and not is_proved)
        for end in failed:
            key = end.sequence.request.key
            is_unproved = not is_proved and any(key in exit_.alone for exit_ in self._exits.values())
            key.session.add_worker_loss(key, EXIT_ALONE, is_unproved=is_unproved, is_held=True)
            self._held[key] = end
            before[key] = end.sequence.suspicion
            alone.add(key)
        exit_ = _Exit(boot_id, before, alone, now)
        if is_proved:
            self._count(exit_)
        elif before:
            self._exits[address] = exit_

    def abort(self, key: SequenceKey) -> bool:
        """Forgets a held sequence. Returns False if there is no such sequence."""
        return self._held.pop(key, None) is not None

    def settle(self, address: str, boot_id: int) -> list[Acquittal]:
        """Takes note of the process that has answered a claim at `address`. Returns the accusations that this
        disproves. Tells the routers of those that it proves."""
        exit_ = self._exits.pop(address, None)
        if exit_ is None:
            return []
        if exit_.boot_id != boot_id:
            self._prove(exit_)
            return []
        acquittals = (self._acquit(key, exit_) for key in exit_.before)
        return [acquittal for acquittal in acquittals if acquittal is not None]

    def judge(self, now: float) -> list[FinishedSequence[RoutedRequest]]:
        """Removes and returns the held sequences that fail now: those whose exits are all proved, and those whose
        deadline is past."""
        for address, exit_ in list(self._exits.items()):
            if now - exit_.since > self._longest_s:
                self._prove(self._exits.pop(address))
        accused = {key for exit_ in self._exits.values() for key in exit_.before} if self._held else set()
        ends = [self._held.pop(key) for key in self._held.keys() - accused]
        for key, end in list(self._held.items()):
            deadline = end.sequence.request.deadline
            if deadline is not None and deadline <= now:
                failure = Failure(ErrorKind.DEADLINE_EXCEEDED, "the request's time ran out while its worker was lost")
                ends.append(FinishedSequence(self._held.pop(key).sequence, FinishReason.ERROR, failure))
        return ends

    def _forget(self, key: SequenceKey) -> None:
        """Drops all accusations of a sequence that has a new token since."""
        for exit_ in self._exits.values():
            exit_.before.pop(key, None)
            exit_.alone.discard(key)

    def _prove(self, exit_: _Exit) -> None:
        """Tells the routers of an exit, also of the sequences that they have moved since. It does not count for a
        sequence that has a new token."""
        self._count(exit_)
        for key in exit_.before:
            if key not in exit_.alone:
                continue
            suspicion = self._suspicion_of(key)
            key.session.add_worker_loss(key, EXIT_ALONE if suspicion is None else suspicion, is_held=key in self._held)

    def _count(self, exit_: _Exit) -> None:
        """Lets an exit that is proved count beside those that are not."""
        for other in self._exits.values():
            for key in exit_.alone & other.before.keys():
                other.before[key] = EXIT_ALONE

    def _acquit(self, key: SequenceKey, exit_: _Exit) -> Acquittal | None:
        """Withdraws an accusation. Returns None if the sequence is still suspected of as much, because of another exit
        since, or stays held."""
        suspicion, was_alone = exit_.before[key], key in exit_.alone
        others = [other for other in self._exits.values() if key in other.before]
        # If these are disproved as well, the sequence is as suspect as it was before all of them.
        for other in others:
            if was_alone or other.before[key] < EXIT_ALONE:
                other.before[key] = min(suspicion, other.before[key])
        if key in self._held and not was_alone:
            return None
        is_unproved = any(key in other.alone for other in others)
        if is_unproved:
            suspicion = EXIT_ALONE
        end = self._held.pop(key, None)
        if end is not None:
            # The sequence is accused of two exits. Only the other one is left.
            key.session.add_worker_loss(key, EXIT_ALONE, is_unproved=is_unproved)
            return Acquittal(key, EXIT_ALONE, is_unproved, end.sequence)
        is_latest = all(other.since < exit_.since for other in others)
        return Acquittal(key, suspicion, is_unproved, None) if is_latest else None
