"""How long steps take and how fast the queue moves, learned from what was, and what follows from it: how long a chunk
of a prompt may be, how many plans to keep in flight, when to come again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

# Steps after which an observation counts half.
_HALF_LIFE_STEPS = 200
_FORGETTING = 0.5 ** (1 / _HALF_LIFE_STEPS)
# Brings all features near 1, so that the fit is well conditioned.
_TOKENS_SCALE = 1 / 256
_PAIRS_SCALE = 1 / 100_000
_FEATURES = range(4)
# The doubt of a weight is its place on the diagonal of the inverse: with 1, a step whose feature is 1 tells as much of
# it as all steps before. It grows with each step that says nothing of the weight, and no further than this: a thousand
# decodes, whose features hardly differ, must not make their noise the time that a prompt takes.
_MOST_DOUBT = 1.0
_GROWTH_OF_DOUBT = _FORGETTING**-0.5
# A step with so many tokens of prompts tells how fast the device is at the moment.
_PROMPT_TOKENS = 64
# A step with no more tokens of prompts counts as one without prompts.
_NO_PROMPT_TOKENS = 8
# The weight of the last step in the running means: of the slowness, and of the time of steps without prompts.
_SHARE_OF_LAST = 0.25
_SHARE_OF_SHORT = 0.05
# The same, of one that took longer than the mean: what neighbours on the device add is not the step's own.
_SHARE_OF_LONGER = 0.0005
# The slowness stays between this and its inverse.
_MOST_SLOWNESS = 4.0
# One step counts as at most so many times slower than the last ones: a page fault does not make the device slow.
_MOST_CHANGE = 2.0
# A step without prompts brings the slowness closer to 1 by this part.
_RELAXATION = 0.02
_MIN_STEPS = 4
# The estimate is trusted up to so many times the largest step seen: decodes tell little of what prompts take.
_GROWTH = 2
_FIRST_TOKENS = 256
# A plan leaves before those in flight end by at least so many seconds, and by this part of what they take.
_LEAST_LEAD_S = 0.01
_LEAD_SHARE = 0.25
# A shorter time is not worth a timer.
_LEAST_HOLD_S = 0.001
_SOONEST_S = 1.0
_LATEST_S = 60.0

Row = Sequence[float]


class _Fit:
    """seconds = weights · features, by recursive least squares with forgetting (Ljung, System Identification, 1999,
    section 11.2), so that a device that becomes slower by its heat is followed.
    """

    def __init__(self) -> None:
        self.weights = [0.0] * len(_FEATURES)
        self._inverse: list[list[float]] = [[100.0 if i == j else 0.0 for j in _FEATURES] for i in _FEATURES]
        self._num_steps = 0

    @property
    def is_known(self) -> bool:
        return self._num_steps >= _MIN_STEPS

    def observe(self, x: Row, seconds: float) -> None:
        self._num_steps += 1
        inverse = self._inverse
        p = [_dot(row, x) for row in inverse]
        scale = 1.0 / (_FORGETTING + _dot(x, p))
        error = seconds - _dot(self.weights, x)
        growth = [_GROWTH_OF_DOUBT if inverse[i][i] < _MOST_DOUBT else 1.0 for i in _FEATURES]
        for i in _FEATURES:
            self.weights[i] += p[i] * scale * error
            for j in _FEATURES:
                inverse[i][j] = (inverse[i][j] - p[i] * p[j] * scale) * growth[i] * growth[j]


class StepTimes:
    """seconds = a + b · tokens + c · pairs + d · prompt log probabilities, where pairs counts each token with every
    position it attends to, and the last are the tokens of prompts whose log probabilities are wanted: the output layer
    works for each of them, as it does for no other token of a prompt.

    What neighbours on the device take of it changes faster than the fit follows, and for all terms alike: one factor
    follows the last steps with prompts.
    """

    def __init__(self) -> None:
        self._all = _Fit()
        # Of steps that have no prompts: long steps with prompts tell badly what the others take.
        self._decodes = _Fit()
        # The time that the last steps with prompts took, as a multiple of what the weights predict.
        self._slowness = 1.0
        # Seconds of steps that have no prompts: what the quick ones among them take.
        self._short_step: float | None = None
        self._most_tokens = 0
        self._knows_logprobs = False

    @property
    def is_known(self) -> bool:
        return self._all.is_known

    def observe(
        self, num_tokens: int, num_pairs: float, seconds: float, num_prompt_logprobs: int = 0, num_rows: int = 1
    ) -> None:
        """`num_rows`: number of sequences in the step. All tokens beyond one for each are taken for prompts'."""
        self._most_tokens = max(self._most_tokens, num_tokens)
        self._knows_logprobs = self._knows_logprobs or num_prompt_logprobs > 0
        x = _features(num_tokens, num_pairs, num_prompt_logprobs)
        expected = _dot(self._all.weights, x)
        num_prompt_tokens = num_tokens - num_rows
        if not _has_prompts(num_tokens, num_rows):
            self._decodes.observe(x, seconds)
            last = seconds if self._short_step is None else self._short_step
            self._short_step = last + (_SHARE_OF_SHORT if seconds < last else _SHARE_OF_LONGER) * (seconds - last)
        if num_prompt_tokens < _PROMPT_TOKENS:
            self._slowness += _RELAXATION * (1.0 - self._slowness)
        elif self.is_known and expected > 0:
            least, most = self._slowness / _MOST_CHANGE, self._slowness * _MOST_CHANGE
            ratio = min(max(least, 1 / _MOST_SLOWNESS, seconds / expected), most, _MOST_SLOWNESS)
            self._slowness += _SHARE_OF_LAST * (ratio - self._slowness)
        self._all.observe(x, seconds)

    @property
    def trusted_tokens(self) -> int:
        """A step of more is not to be planned by these times."""
        return max(_FIRST_TOKENS, _GROWTH * self._most_tokens)

    @property
    def short_step_seconds(self) -> float:
        """Seconds that the quickest steps without prompts take."""
        return self.seconds(1, 1) if self._short_step is None else self._short_step

    def step_seconds(self, num_tokens: int, num_pairs: float, num_prompt_logprobs: int, num_rows: int) -> float:
        """Seconds that a step is expected to take. `num_rows`: as in `observe`."""
        if _has_prompts(num_tokens, num_rows):
            return self.seconds(num_tokens, num_pairs, num_prompt_logprobs)
        return self.decode_seconds(num_tokens, num_pairs)

    def seconds(self, num_tokens: int, num_pairs: float, num_prompt_logprobs: int = 0) -> float:
        """What such a step would take."""
        without = _dot(self._all.weights, _features(num_tokens, num_pairs, 0))
        return self._slowness * max(0.0, without + self._per_logprob * num_prompt_logprobs)

    def decode_seconds(self, num_tokens: int, num_pairs: float) -> float:
        """Seconds of a step without prompts: the smaller of both fits' predictions."""
        seconds = self.seconds(num_tokens, num_pairs)
        if not self._decodes.is_known:
            return seconds
        return min(seconds, max(0.0, _dot(self._decodes.weights, _features(num_tokens, num_pairs, 0))))

    def max_chunk(self, position: int, seconds: float, *, with_logprobs: bool = False) -> int:
        """The longest chunk of a prompt, from `position` on, that adds at most so many seconds to a step.
        `with_logprobs`: its log probabilities are wanted."""
        if seconds <= 0:
            return 0
        seconds /= self._slowness
        per_pair = max(0.0, self._all.weights[2] * _PAIRS_SCALE)
        per_token = self._all.weights[1] * _TOKENS_SCALE + per_pair * position
        per_token = max(1e-9, per_token + self._per_logprob * with_logprobs)
        # per_token · n + per_pair · n² / 2 = seconds, in the form that is exact for small per_pair, too.
        return int(2 * seconds / (per_token + math.sqrt(per_token**2 + 2 * per_pair * seconds)))

    def chunk_seconds(self, position: int, num_tokens: int, *, with_logprobs: bool = False) -> float:
        """What a chunk adds to a step."""
        num_prompt_logprobs = num_tokens if with_logprobs else 0
        return self.seconds(num_tokens, pairs(position, num_tokens), num_prompt_logprobs) - self.seconds(0, 0)

    @property
    def _per_logprob(self) -> float:
        """Seconds that one token takes more where its log probabilities are wanted. Until some such step has run: as
        long as the token takes without them."""
        return max(0.0, self._all.weights[3] if self._knows_logprobs else self._all.weights[1]) * _TOKENS_SCALE


def _has_prompts(num_tokens: int, num_rows: int) -> bool:
    """Whether a step of so many sequences computes enough prompt tokens to take notably longer than its decodes."""
    return num_tokens - num_rows > _NO_PROMPT_TOKENS


def _features(num_tokens: int, num_pairs: float, num_prompt_logprobs: int) -> tuple[float, float, float, float]:
    return (1.0, num_tokens * _TOKENS_SCALE, num_pairs * _PAIRS_SCALE, num_prompt_logprobs * _TOKENS_SCALE)


def _dot(a: Row, b: Row) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


class RunAhead:
    """How many plans to keep in flight: as many as hide the way to the worker and back behind its steps, and no more,
    since what is planned can no longer be changed. And when the next one leaves: shortly before those in flight end,
    so that whoever comes meanwhile is in it.
    """

    def __init__(self, fixed: int | None, most: int = 8) -> None:
        """`fixed`: how many, whatever is measured. Raises ValueError if that is less than 1."""
        if fixed is not None and fixed < 1:
            raise ValueError(f"run-ahead is {fixed}: must be at least 1, or nothing is ever computed")
        self.depth = 2 if fixed is None else fixed
        self._is_fixed = fixed is not None
        self._most = most
        self._hop = 0.0
        self._run = 0.0
        # When each plan in flight left, and what it was thought to take, in seconds.
        self._in_flight: deque[tuple[float, float]] = deque()
        # When the last result came.
        self._answered_at = 0.0

    def sent(self, now: float, seconds: float) -> None:
        """A plan that is thought to take so many `seconds` leaves."""
        self._in_flight.append((now, seconds))

    def answered(self, now: float) -> float:
        """The result of the oldest plan in flight is here. Returns when that plan left."""
        self._answered_at = now
        return self._in_flight.popleft()[0]

    def lost(self) -> None:
        """The worker is gone, and all plans in flight with it."""
        self._in_flight.clear()

    def seconds_to_hold(self, now: float) -> float:
        """Seconds that the next plan can wait. It leaves before the plans in flight are expected to end, early enough
        for a worker that is somewhat faster than expected. If the worker is faster still, its result releases the plan.
        """
        if self._is_fixed or not self._in_flight:
            return 0.0
        seconds = sum(seconds for _, seconds in self._in_flight)
        end = max(self._answered_at, self._in_flight[0][0]) + seconds
        hold = end - now - 2 * self._hop - max(_LEAST_LEAD_S, _LEAD_SHARE * seconds)
        return hold if hold > _LEAST_HOLD_S else 0.0

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
