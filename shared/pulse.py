"""How long a peer that sends something at regular times may be silent before it counts as hung."""

from __future__ import annotations

import heapq

from shared import clock

# A peer is silent for too long after this many times the usual pause that it has made lately.
FACTOR = 5.0
# The usual pause is the longest one that was made at least this many times. A single long one, of a link that stood
# still or a process that was suspended, says nothing about the next.
NUM_USUAL = 3
# No pause makes the limit longer than this number of seconds.
MOST_S = 10.0
# A peer that is given up again within _CALM_S seconds had this many times longer: perhaps it was only slow.
_GROWTH = 2.0
_CALM_S = 10.0
# A pause counts for one to two times this number of seconds.
_WINDOW_S = 60.0


class Pulse:
    """The pauses between a peer's messages, and what follows from them. Outlives the peer's connections."""

    def __init__(self) -> None:
        self._window_ends = clock.now() + _WINDOW_S
        # The longest pauses of this window and of the one before, at most NUM_USUAL each.
        self._longest: list[float] = []
        self._longest_before: list[float] = []
        self._times_longer = 1.0
        self._calm_at = float("-inf")

    def heard(self, silent_s: float) -> None:
        """Takes note that a message came after `silent_s` seconds without one."""
        now = clock.now()
        if now >= self._window_ends:
            self._longest_before = self._longest if now < self._window_ends + _WINDOW_S else []
            self._longest = []
            self._window_ends = now + _WINDOW_S
        if len(self._longest) < NUM_USUAL:
            heapq.heappush(self._longest, silent_s)
        else:
            heapq.heappushpop(self._longest, silent_s)

    def gave_up(self) -> None:
        """Takes note that the peer was given up."""
        self._times_longer = _GROWTH * self._growth
        self._calm_at = clock.now() + _CALM_S

    def limit_s(self, least_s: float) -> float:
        """Returns the seconds without a message after which the peer counts as hung: five times its usual pause of the
        last minute or two, but not less than `least_s`, and not more than 10 s or `least_s`."""
        pauses = sorted(self._longest + self._longest_before)[-NUM_USUAL:]
        usual = pauses[0] if len(pauses) == NUM_USUAL else 0.0
        return max(least_s, min(max(least_s, FACTOR * usual) * self._growth, MOST_S))

    @property
    def _growth(self) -> float:
        return self._times_longer if clock.now() < self._calm_at else 1.0
