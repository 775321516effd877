"""Decides which worker a scheduler tries to claim next, and when. Imports no clock: every time is given."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

# Seconds until an address is tried again after the first, second, ... failed attempt in a row.
RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.5, 1.0)
# Seconds until a worker that another scheduler holds is tried again. This is how a scheduler finds out that a worker
# has lost its owner.
HELD_DELAY_S = 1.0
# Minimum time between two routine attempts, over all addresses together. An attempt is routine unless its worker is new
# or was lost just now. So the number of schedulers bounds the attempts in a fleet, however many workers there are.
PACE_S = 0.05
# Maximum number of attempts at a time at addresses whose last attempt failed, or whose worker was lost. Each can take
# ten seconds, if the host is gone. The scheduler's other places (MAX_ATTEMPTS in claimer.py) are for new workers.
MAX_RETRIES = 12


@dataclass(slots=True)
class _Turn:
    due: float
    # Random, so that schedulers that learn of many workers at once do not try them in the same order.
    rank: float
    # Whether the worker is new, or was lost just now. Such attempts do not wait for the pace.
    is_urgent: bool


class ClaimTurns:
    """The addresses at which the scheduler holds no worker, each with the time of its next attempt.

    An address is in one of three states: it waits for its turn, is being tried, or its worker is claimed. `next` moves
    it from the first state to the second; `held_elsewhere`, `failed` and `lost` move it back to the first.
    """

    def __init__(self, jitter: random.Random) -> None:
        """`jitter`: spreads the attempts of several schedulers."""
        self._jitter = jitter
        self._turns: dict[str, _Turn] = {}
        self._num_failures: dict[str, int] = {}
        # Addresses whose worker was held by another scheduler at the last attempt.
        self._held_elsewhere: set[str] = set()
        self._paced_at = float("-inf")
        # Addresses being tried now whose attempt has waited for the pace.
        self._paced: set[str] = set()
        # Addresses being tried now whose last attempt failed.
        self._retried: set[str] = set()

    def add(self, address: str, now: float) -> None:
        """Adds an address that is new. It is tried at once."""
        self._num_failures[address] = 0
        self._wait(address, now, is_urgent=True)

    def remove(self, address: str) -> None:
        self._turns.pop(address, None)
        self._num_failures.pop(address, None)
        self._held_elsewhere.discard(address)
        self._end(address)

    def next(self, now: float) -> str | None:
        """Returns the address to try now, if there is one."""
        address = self._first(now)
        if address is None:
            return None
        if not self._turns.pop(address).is_urgent:
            self._paced_at = now
            self._paced.add(address)
        if self._num_failures[address]:
            self._retried.add(address)
        return address

    def seconds_to_next(self, now: float) -> float | None:
        """Returns the seconds until `next` returns an address. Returns None if no address waits, or if all that wait
        have failed before and MAX_RETRIES such attempts run."""
        paced = self._paced_at + PACE_S
        times = [turn.due if turn.is_urgent else max(turn.due, paced) for _, turn in self._allowed()]
        return max(0.0, min(times) - now) if times else None

    def knows(self, address: str) -> bool:
        """Returns whether the address was added and not removed."""
        return address in self._num_failures

    def is_first_failure(self, address: str) -> bool:
        """Returns whether a failure would be the first one since the address was added, or another scheduler held its
        worker. The loss of a worker counts as a failure."""
        return self._num_failures[address] == 0

    def was_held_elsewhere(self, address: str) -> bool:
        """Returns whether another scheduler held the worker at the last attempt."""
        return address in self._held_elsewhere

    def claimed(self, address: str) -> None:
        """Takes note that an attempt has succeeded. Such an attempt does not count for the pace, so a scheduler can
        take over many workers that have lost their owner."""
        self._held_elsewhere.discard(address)
        if address in self._paced:
            self._paced_at = float("-inf")
        self._end(address)

    def held_elsewhere(self, address: str, now: float, *, was_asked: bool) -> None:
        """Takes note that another scheduler holds the worker, or gets it now. `was_asked`: whether that scheduler was
        asked to give it away. If not, the next attempt does not wait, except for the pace."""
        self._held_elsewhere.add(address)
        self._num_failures[address] = 0
        delay = HELD_DELAY_S * self._jitter.uniform(0.75, 1.0) if was_asked else 0.0
        self._wait(address, now + delay, is_urgent=False)

    def failed(self, address: str, now: float) -> None:
        """Takes note that the worker could not be reached or used."""
        self._held_elsewhere.discard(address)
        num_failures = self._num_failures[address] = self._num_failures[address] + 1
        delay = RETRY_DELAYS_S[min(num_failures, len(RETRY_DELAYS_S)) - 1]
        self._wait(address, now + delay, is_urgent=num_failures < len(RETRY_DELAYS_S))

    def lost(self, address: str, now: float, *, has_worked: bool) -> None:
        """Takes note that a claimed worker was lost. `has_worked`: whether it has run some steps. If so, the delays
        begin anew."""
        if has_worked:
            self._num_failures[address] = 0
        self.failed(address, now)

    def _wait(self, address: str, due: float, *, is_urgent: bool) -> None:
        self._end(address)
        self._turns[address] = _Turn(due, self._jitter.random(), is_urgent)

    def _end(self, address: str) -> None:
        """Takes note that an attempt has ended."""
        self._paced.discard(address)
        self._retried.discard(address)

    def _allowed(self) -> Iterable[tuple[str, _Turn]]:
        """The addresses that wait, without those that have failed while too many such attempts run."""
        if len(self._retried) < MAX_RETRIES:
            return self._turns.items()
        return ((address, turn) for address, turn in self._turns.items() if not self._num_failures[address])

    def _first(self, now: float) -> str | None:
        may_pace = now >= self._paced_at + PACE_S
        due = [
            (turn.due, turn.rank, address)
            for address, turn in self._allowed()
            if turn.due <= now and (turn.is_urgent or may_pace)
        ]
        return min(due)[2] if due else None
