"""Estimates of step times and of the queue's speed, learned from past steps. They decide how long a prompt's chunk is,
how many plans are kept in flight, and when a refused client should retry.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

# Number of steps after which an observation's weight has halved.
_HALF_LIFE_STEPS = 200
_FORGETTING = 0.5 ** (1 / _HALF_LIFE_STEPS)
# Factors that bring all features near 1, so that the fit is well conditioned.
_TOKENS_SCALE = 1 / 256
_PAIRS_SCALE = 1 / 100_000
_FEATURES = range(4)
# The doubt of a weight is the weight's entry on the diagonal of the inverse. At 1, a step whose feature is 1 counts as
# much for the weight as all steps before it. Doubt grows with each step that carries no information on the weight, up
# to this bound. Without the bound, the noise of a thousand decodes, whose features hardly differ, would decide the
# estimate for a prompt.
_MOST_DOUBT = 1.0
_GROWTH_OF_DOUBT = _FORGETTING**-0.5
# Least number of prompt tokens with which a step shows how fast the device is at the moment.
_PROMPT_TOKENS = 64
# Maximum number of prompt tokens in a step that counts as a step without prompts.
_NO_PROMPT_TOKENS = 8
# The weight of the last step in the running means: of the slowness, and of the time of steps without prompts.
_SHARE_OF_LAST = 0.25
_SHARE_OF_SHORT = 0.05
# The weight of a step without prompts that took longer than the mean. Other load on the device usually causes the
# excess.
_SHARE_OF_LONGER = 0.0005
# The slowness stays between this value and its inverse.
_MOST_SLOWNESS = 4.0
# Bounds the ratio of a single step's time to its estimate: it counts as at most the slowness times this factor, and at
# least the slowness divided by it. A single page fault does not make the device slow.
_MOST_CHANGE = 2.0
# A step without prompts brings the slowness closer to 1 by this fraction of the distance.
_RELAXATION = 0.02
_MIN_STEPS = 4
# The estimate is trusted for steps with up to _GROWTH times the tokens of the largest step seen, because decodes say
# little about prompts.
_GROWTH = 2
_FIRST_TOKENS = 256
# A plan leaves this number of seconds before the plans in flight end, or this fraction of their duration before, if
# that is longer.
_LEAST_LEAD_S = 0.01
_LEAD_SHARE = 0.25
# Shortest time for which a plan is held back: a shorter time is not worth a timer.
_LEAST_HOLD_S = 0.001
_SOONEST_S = 1.0
_LATEST_S = 60.0

Row = Sequence[float]


class _Fit:
    """Fits seconds = weights · features by recursive least squares with forgetting (Ljung, System Identification, 1999,
    section 11.2), so that the estimate follows a device that slows down as it heats up.
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
    """Estimates seconds = a + b · tokens + c · pairs + d · prompt log probabilities.

    Pairs count each token with every position that it attends to. The last term counts prompt tokens whose log
    probabilities are wanted: the output layer runs for each of them, and for no other prompt token but the last.

    Other load on the device changes faster than the fit can follow, and slows all terms alike. One factor, the
    slowness, measures it from the last steps with prompts.
    """

    def __init__(self) -> None:
        self._all = _Fit()
        # A separate fit for steps without prompts, because a fit over long steps with prompts predicts them badly.
        self._decodes = _Fit()
        # The time that the last steps with prompts took, as a multiple of the time that the weights predict.
        self._slowness = 1.0
        # Duration of the quickest steps without prompts, in seconds.
        self._short_step: float | None = None
        self._most_tokens = 0
        self._knows_logprobs = False

    @property
    def is_known(self) -> bool:
        return self._all.is_known

    def observe(
        self, num_tokens: int, num_pairs: float, seconds: float, num_prompt_logprobs: int = 0, num_rows: int = 1
    ) -> None:
        """Learns from one step. `num_rows`: number of sequences in it. Tokens beyond one per sequence count as prompt
        tokens."""
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
        """Maximum number of tokens in a step for which the estimate is trusted."""
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
        """Seconds that a step is expected to take, by the fit over all steps."""
        without = _dot(self._all.weights, _features(num_tokens, num_pairs, 0))
        return self._slowness * max(0.0, without + self._per_logprob * num_prompt_logprobs)

    def decode_seconds(self, num_tokens: int, num_pairs: float) -> float:
        """Seconds of a step without prompts: the smaller of both fits' predictions."""
        seconds = self.seconds(num_tokens, num_pairs)
        if not self._decodes.is_known:
            return seconds
        return min(seconds, max(0.0, _dot(self._decodes.weights, _features(num_tokens, num_pairs, 0))))

    def max_chunk(self, position: int, seconds: float, *, with_logprobs: bool = False) -> int:
        """Number of tokens in the longest chunk of a prompt, from `position` on, that adds at most `seconds` to a step.
        `with_logprobs`: whether the log probabilities of these tokens are wanted."""
        if seconds <= 0:
            return 0
        seconds /= self._slowness
        per_pair = max(0.0, self._all.weights[2] * _PAIRS_SCALE)
        per_token = self._all.weights[1] * _TOKENS_SCALE + per_pair * position
        per_token = max(1e-9, per_token + self._per_logprob * with_logprobs)
        # The solution n of per_token · n + per_pair · n² / 2 = seconds, in the form that is exact for small per_pair,
        # too.
        return int(2 * seconds / (per_token + math.sqrt(per_token**2 + 2 * per_pair * seconds)))

    def chunk_seconds(self, position: int, num_tokens: int, *, with_logprobs: bool = False) -> float:
        """Seconds that a chunk of a prompt adds to a step."""
        num_prompt_logprobs = num_tokens if with_logprobs else 0
        return self.seconds(num_tokens, pairs(position, num_tokens), num_prompt_logprobs) - self.seconds(0, 0)

    @property
    def _per_logprob(self) -> float:
        """Seconds that a prompt token's log probabilities add. Until a step with such log probabilities has run, the
        estimate is the time of a token without them."""
        return max(0.0, self._all.weights[3] if self._knows_logprobs else self._all.weights[1]) * _TOKENS_SCALE


def _has_prompts(num_tokens: int, num_rows: int) -> bool:
    """Whether a step of `num_rows` sequences computes enough prompt tokens to take notably longer than its decodes
    alone.
    """
    return num_tokens - num_rows > _NO_PROMPT_TOKENS


def _features(num_tokens: int, num_pairs: float, num_prompt_logprobs: int) -> tuple[float, float, float, float]:
    return (1.0, num_tokens * _TOKENS_SCALE, num_pairs * _PAIRS_SCALE, num_prompt_logprobs * _TOKENS_SCALE)


def _dot(a: Row, b: Row) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


class RunAhead:
    """Decides how many plans to keep in flight, and when the next one leaves.

    It keeps as many plans as hide the round trip to the worker behind the worker's steps. It keeps no more, because a
    plan cannot be changed after it was sent. A plan leaves shortly before the plans in flight end, so that it includes
    requests that arrive meanwhile.
    """

    def __init__(self, fixed: int | None, most: int = 8) -> None:
        """`fixed`: number of plans to keep in flight, regardless of measurements. Raises ValueError if it is less than
        1.
        """
        if fixed is not None and fixed < 1:
            raise ValueError(f"run-ahead is {fixed}: must be at least 1, or nothing is ever computed")
        self.depth = 2 if fixed is None else fixed
        self._is_fixed = fixed is not None
        self._most = most
        self._hop = 0.0
        self._run = 0.0
        # The time when each plan in flight left, and its expected duration in seconds.
        self._in_flight: deque[tuple[float, float]] = deque()
        # The time of the last result.
        self._answered_at = 0.0

    def sent(self, now: float, seconds: float) -> None:
        """Takes note that a plan leaves. `seconds`: its expected duration."""
        self._in_flight.append((now, seconds))

    def answered(self, now: float) -> float:
        """Takes note that the result of the oldest plan in flight came. Returns the time when that plan left."""
        self._answered_at = now
        return self._in_flight.popleft()[0]

    def lost(self) -> None:
        """Forgets all plans in flight, whose worker is lost."""
        self._in_flight.clear()

    def seconds_to_hold(self, now: float) -> float:
        """Seconds that the next plan can wait. It leaves before the plans in flight are expected to end, early enough
        for a worker that is somewhat faster than expected. If the worker is faster still, its result releases the next
        plan.
        """
        if self._is_fixed or not self._in_flight:
            return 0.0
        seconds = sum(seconds for _, seconds in self._in_flight)
        end = max(self._answered_at, self._in_flight[0][0]) + seconds
        hold = end - now - 2 * self._hop - max(_LEAST_LEAD_S, _LEAD_SHARE * seconds)
        return hold if hold > _LEAST_HOLD_S else 0.0

    def observe(self, round_trip: float, run: float) -> None:
        """Learns from one plan. `round_trip`: seconds from its departure until its result was answered with the next
        plan, without the time it waited at the worker. `run`: seconds of the step itself.
        """
        if self._is_fixed or run <= 0:
            return
        hop = max(0.0, round_trip - run)
        share = 0.05 if self._run else 1.0
        self._hop += share * (hop - self._hop)
        self._run += share * (run - self._run)
        # A worker that idles one hundredth of the time is not worth one more plan in flight.
        needed = 1 + math.ceil(self._hop / self._run - 0.01)
        self.depth = max(1, min(needed, self._most))


class TurnRate:
    """Estimates how fast the queue moves, from the number of sequences that started lately."""

    def __init__(self, window: float = 10.0) -> None:
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()

    def observe(self, now: float, num_started: int) -> None:
        """Takes a sample at `now`, in seconds. `num_started`: number of sequences started since the beginning."""
        self._samples.append((now, num_started))
        while now - self._samples[0][0] > self._window:
            self._samples.popleft()

    def seconds_until_turn(self, num_waiting: int) -> float:
        """Expected wait of a new sequence in seconds, from 1 to 60. A refused client should retry after this time."""
        if len(self._samples) < 2:
            return _SOONEST_S
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        if after == before:
            return _LATEST_S
        return min(max(_SOONEST_S, num_waiting * (end - start) / (after - before)), _LATEST_S)


def pairs(position: int, num_tokens: int) -> float:
    """Number of pairs of a token and a position that it attends to, in a chunk that begins at `position`."""
    return num_tokens * (position + (num_tokens + 1) / 2)
