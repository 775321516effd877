"""Limits how often a crashed part is restarted."""

from __future__ import annotations

from collections import deque

BACKOFF_S = (0.1, 0.5, 2.0)
WINDOW_S = 60.0


class Restarts:
    """Allows a part three restarts per minute, each after a longer pause than the one before."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def pause(self, now: float) -> float | None:
        """Returns the seconds to wait before restarting a part that crashes now. Returns None if the part must not be
        restarted. `now`: the time in seconds of any monotonic clock."""
        while self._times and self._times[0] <= now - WINDOW_S:
            self._times.popleft()
        if len(self._times) == len(BACKOFF_S):
            return None
        self._times.append(now)
        return BACKOFF_S[len(self._times) - 1]
