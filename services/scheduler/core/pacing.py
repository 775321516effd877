"""How long steps take and how fast the queue moves, learned from what was, and what follows from it: how long a chunk
of a prompt may be, how many plans to keep in flight, when to come again.
"""

from __future__ import annotations

import math
from collections import deque

# Steps after which an observation counts half.
_HALF_LIFE_STEPS = 200
_FORGETTING = 0.5 ** (1 / _HALF_LIFE_STEPS)
# Brings both features near 1, so that the fit is well conditioned.
_TOKENS_SCALE = 1 / 256
_PAIRS_SCALE = 1 / 100_000
_MIN_STEPS = 4
# The estimate is trusted up to so many times the largest step seen: decodes tell little of what prompts take.
_GROWTH = 2
_FIRST_TOKENS = 256
_SOONEST_S = 1.0
_LATEST_S = 60.0

Row = list[float]


class StepTimes:
    """seconds = a + b · tokens + c · pairs, where pairs counts each token with every position it attends to.

    Recursive least squares with forgetting (Ljung, System Identification, 1999, section 11.2), so that a device that
    becomes slower, by its neighbours or its heat, is followed.
    """

    def __init__(self) -> None:
        self._weights = [0.0, 0.0, 0.0]
        self._inverse: list[Row] = [[100.0 if i == j else 0.0 for j in range(3)] for i in range(3)]
        self._num_steps = 0
        self._most_tokens = 0

    @property
    def is_known(self) -> bool:
        return self._num_steps >= _MIN_STEPS

    def observe(self, num_tokens: int, num_pairs: float, seconds: float) -> None:
        self._num_steps += 1
        self._most_tokens = max(self._most_tokens, num_tokens)
        x = (1.0, num_tokens * _TOKENS_SCALE, num_pairs * _PAIRS_SCALE)
        inverse = self._inverse
        p = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] for row in inverse]
        scale = 1.0 / (_FORGETTING + x[0] * p[0] + x[1] * p[1] + x[2] * p[2])
        error = seconds - self._dot(x)
        for i in range(3):
            self._weights[i] += p[i] * scale * error
        for i in range(3):
            for j in range(3):
                inverse[i][j] = (inverse[i][j] - p[i] * p[j] * scale) / _FORGETTING
        if inverse[0][0] + inverse[1][1] + inverse[2][2] > 1e4:
            # Steps that are all alike say nothing of one of the terms; what is known of it must not be forgotten.
            for row in inverse:
                row[:] = [value * 0.5 for value in row]

    @property
    def trusted_tokens(self) -> int:
        """A step of more is not to be planned by these times."""
        return max(_FIRST_TOKENS, _GROWTH * self._most_tokens)

    def seconds(self, num_tokens: int, num_pairs: float) -> float:
        """What such a step would take."""
        return max(0.0, self._dot((1.0, num_tokens * _TOKENS_SCALE, num_pairs * _PAIRS_SCALE)))

    def max_chunk(self, position: int, seconds: float) -> int:
        """The longest chunk of a prompt, from `position` on, that adds at most so many seconds to a step."""
        if seconds <= 0:
            return 0
        per_pair = max(0.0, self._weights[2] * _PAIRS_SCALE)
        per_token = max(1e-9, self._weights[1] * _TOKENS_SCALE + per_pair * position)
        # per_token · n + per_pair · n² / 2 = seconds, in the form that is exact for small per_pair, too.
        return int(2 * seconds / (per_token + math.sqrt(per_token**2 + 2 * per_pair * seconds)))

    def chunk_seconds(self, position: int, num_tokens: int) -> float:
        """What a chunk adds to a step."""
        return self.seconds(num_tokens, pairs(position, num_tokens)) - self.seconds(0, 0)

    def _dot(self, x: tuple[float, float, float]) -> float:
        weights = self._weights
        return weights[0] * x[0] + weights[1] * x[1] + weights[2] * x[2]


class RunAhead:
    """How many plans to keep in flight: as many as hide the way to the worker and back behind its steps, and no more,
    since what is planned can no longer be changed.
    """

    def __init__(self, fixed: int | None, most: int = 8) -> None:
        self.depth = fixed or 2
        self._is_fixed = fixed is not None
        self._most = most
        self._hop = 0.0
        self._run = 0.0

    def observe(self, round_trip: float, run: float) -> None:
        """Seconds from a plan's departure until its result was answered by the next plan, but for the time it waited at
        the worker; and of the step itself.
        """
        if self._is_fixed or run <= 0:
            return
        hop = max(0.0, round_trip - run)
        share = 0.05 if self._run else 1.0
        self._hop += share * (hop - self._hop)
        self._run += share * (run - self._run)
        # An idle hundredth of the time is not worth a plan more.
        needed = 1 + math.ceil(self._hop / self._run - 0.01)
        self.depth = max(1, min(needed, self._most))


class TurnRate:
    """How fast the queue moves, by how many sequences started lately."""

    def __init__(self, window: float = 10.0) -> None:
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()

    def observe(self, now: float, num_started: int) -> None:
        """`num_started`: since the beginning, at `now` in seconds."""
        self._samples.append((now, num_started))
        while now - self._samples[0][0] > self._window:
            self._samples.popleft()

    def seconds_until_turn(self, num_waiting: int) -> float:
        """How long whoever comes now would wait: when it is worth to come again. A second to a minute."""
        if len(self._samples) < 2:
            return _SOONEST_S
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        if after == before:
            return _LATEST_S
        return min(max(_SOONEST_S, num_waiting * (end - start) / (after - before)), _LATEST_S)


def pairs(position: int, num_tokens: int) -> float:
    """Tokens times positions attended to, of a chunk that begins at `position`."""
    return num_tokens * (position + (num_tokens + 1) / 2)
