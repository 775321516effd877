"""Estimates step times and the queue's speed from past steps. The estimates decide how long a prompt's chunk is, how
many plans are kept in flight, and when a refused client should retry.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

# Number of steps after which an observation's weight has halved.
_HALF_LIFE_STEPS = 200
_FORGETTING = 0.5 ** (1 / _HALF_LIFE_STEPS)
# Factors that bring the features of typical steps near 1, so that the fit is well conditioned.
_TOKENS_SCALE = 1 / 256
_PAIRS_SCALE = 1 / 100_000
_FEATURES = range(4)
# The doubt of a weight is the weight's entry on the diagonal of the fit's inverse matrix. With a doubt of 1, a step
# whose feature is 1 counts as much for the weight as all steps before it. As older steps are forgotten, the doubt grows
# with each step that carries no information on the weight, but only to about this bound. Without the bound, a thousand
# decodes, whose features hardly differ, would raise the doubt so much that their noise decides the estimate for a
# prompt.
_MOST_DOUBT = 1.0
_GROWTH_OF_DOUBT = _FORGETTING**-0.5
# The slowness (see StepTimes) is estimated from the times of steps with at least this many prompt tokens.
_PROMPT_TOKENS = 64
# Maximum number of prompt tokens in a step that counts as a step without prompts.
_NO_PROMPT_TOKENS = 8
# The weight of the last step in the running mean of the slowness.
_SHARE_OF_LAST = 0.25
# The weight of the last step in the running mean of the duration of steps without prompts, if the step was quicker than
# the mean.
_SHARE_OF_SHORT = 0.05
# The same weight, if the step took longer than the mean. It is much smaller, because other load on the device usually
# causes the excess.
_SHARE_OF_LONGER = 0.0005
# Upper bound of the slowness (see StepTimes). The lower bound is the inverse of this value.
_MOST_SLOWNESS = 4.0
# The ratio of a step's measured time to its estimate is clipped to slowness / _MOST_CHANGE .. slowness * _MOST_CHANGE.
# So a single page fault does not make the device seem slow.
_MOST_CHANGE = 2.0
# After a step with fewer than _PROMPT_TOKENS prompt tokens, the slowness moves towards 1 by this fraction of its
# difference from 1.
_RELAXATION = 0.02
# Number of steps that must have been observed before the estimate is used.
_MIN_STEPS = 4
# The estimate is trusted for steps of up to _GROWTH times as many tokens as the largest step so far, and at least for
# _FIRST_TOKENS tokens. For larger steps it can be far off: if, for example, only decodes were observed, they say little
# about long prompts.
_GROWTH = 2
_FIRST_TOKENS = 256
# Safety margin between the time when the next plan reaches the worker and the expected end of the plans in flight: this
# number of seconds, or this fraction of the expected duration of the plans in flight, whichever is longer.
_LEAST_LEAD_S = 0.01
_LEAD_SHARE = 0.25
# Shortest time for which a plan is held back. For less time, a timer is not worthwhile, and the plan is sent at once.
_LEAST_HOLD_S = 0.001
# Bounds of the time after which a refused client should retry.
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

    The number of pairs is the number of positions that a token attends to, summed over all tokens. The last term counts
    prompt tokens whose log probabilities are wanted. The output layer must run for each of these tokens; without log
    probabilities, it runs only for a prompt's last token.

    Other load on the device changes faster than the fit can follow, and slows all terms alike. A common factor, the
    slowness, measures this load from the last steps with prompts.
    """

    def __init__(self) -> None:
        self._all = _Fit()
        # A separate fit for steps without prompts. A fit that includes long steps with prompts predicts the short steps
        # without prompts badly.
        self._decodes = _Fit()
        # Running mean, over the last steps with prompts, of a step's measured time divided by the time that `_all`
        # predicts for the step.
        self._slowness = 1.0
        # Running mean of the duration of steps without prompts, in seconds. Quick steps count much more than slow ones.
        self._short_step: float | None = None
        self._most_tokens = 0
        self._knows_logprobs = False

    @property
    def is_known(self) -> bool:
        return self._all.is_known

    def observe(
        self, num_tokens: int, num_pairs: float, seconds: float, num_prompt_logprobs: int = 0, num_rows: int = 1
    ) -> None:
        """Learns from one step, which took `seconds`. `num_rows`: number of sequences in the step. Tokens beyond one
        per sequence count as prompt tokens."""
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
        """Seconds that a step is expected to take, as predicted by the linear fit to all steps, with and without
        prompts."""
        without = _dot(self._all.weights, _features(num_tokens, num_pairs, 0))
        return self._slowness * max(0.0, without + self._per_logprob * num_prompt_logprobs)

    def decode_seconds(self, num_tokens: int, num_pairs: float) -> float:
        """Seconds that a step without prompts is expected to take: the smaller one of the predictions of the fit to all
        steps and of the fit to steps without prompts."""
        seconds = self.seconds(num_tokens, num_pairs)
        if not self._decodes.is_known:
            return seconds
        return min(seconds, max(0.0, _dot(self._decodes.weights, _features(num_tokens, num_pairs, 0))))

    def max_chunk(self, position: int, seconds: float, *, with_logprobs: bool = False) -> int:
        """Number of tokens in the longest chunk of a prompt, starting at `position`, that adds at most `seconds` to a
        step. `with_logprobs`: whether the log probabilities of these tokens are wanted."""
        if seconds <= 0:
            return 0
        seconds /= self._slowness
        per_pair = max(0.0, self._all.weights[2] * _PAIRS_SCALE)
        per_token = self._all.weights[1] * _TOKENS_SCALE + per_pair * position
        per_token = max(1e-9, per_token + self._per_logprob * with_logprobs)
        # The solution n of per_token · n + per_pair · n² / 2 = seconds. This form of the solution is also exact if
        # per_pair is small or 0.
        return int(2 * seconds / (per_token + math.sqrt(per_token**2 + 2 * per_pair * seconds)))

    def chunk_seconds(self, position: int, num_tokens: int, *, with_logprobs: bool = False) -> float:
        """Returns the seconds that a chunk of a prompt adds to a step."""
        num_prompt_logprobs = num_tokens if with_logprobs else 0
        return self.seconds(num_tokens, pairs(position, num_tokens), num_prompt_logprobs) - self.seconds(0, 0)

    @property
    def _per_logprob(self) -> float:
        """Seconds that a prompt token's log probabilities add. Until a step with such log probabilities has run, they
        are assumed to take as long as the token itself."""
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
    """Decides how many plans to keep in flight, and when to send the next one.

    It keeps as many plans as are needed to hide the round trip to the worker behind the worker's steps. It keeps no
    more, because a plan cannot be changed after it was sent. For the same reason, the next plan is made and sent only
    shortly before the plans in flight end, so that it includes the requests that have arrived by then.
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
        # (time of sending, expected duration in seconds) of each plan in flight.
        self._in_flight: deque[tuple[float, float]] = deque()
        # The time of the last result.
        self._answered_at = 0.0

    def sent(self, now: float, seconds: float) -> None:
        """Takes note that a plan is sent at `now`. `seconds`: the expected duration of its step."""
        self._in_flight.append((now, seconds))

    def answered(self, now: float) -> float:
        """Takes note that the result of the oldest plan in flight came. Returns the time when that plan was sent."""
        self._answered_at = now
        return self._in_flight.popleft()[0]

    def lost(self) -> None:
        """Forgets all plans in flight, because their worker is lost."""
        self._in_flight.clear()

    def seconds_to_hold(self, now: float) -> float:
        """Seconds to wait before the next plan is made and sent. The plan then reaches the worker before the plans in
        flight end, even if the worker is somewhat faster than expected. If a result comes during the wait, call this
        again.
        """
        if self._is_fixed or not self._in_flight:
            return 0.0
        seconds = sum(seconds for _, seconds in self._in_flight)
        end = max(self._answered_at, self._in_flight[0][0]) + seconds
        hold = end - now - 2 * self._hop - max(_LEAST_LEAD_S, _LEAD_SHARE * seconds)
        return hold if hold > _LEAST_HOLD_S else 0.0

    def observe(self, round_trip: float, run: float) -> None:
        """Updates the estimates with the times of one plan, in seconds. `round_trip`: from the sending of the plan to
        the sending of the next plan, which answers the plan's result; without the time that the plan waited at the
        worker. `run`: duration of the plan's step.
        """
        if self._is_fixed or run <= 0:
            return
        hop = max(0.0, round_trip - run)
        share = 0.05 if self._run else 1.0
        self._hop += share * (hop - self._hop)
        self._run += share * (run - self._run)
        # Subtract 0.01, because one more plan in flight is not worthwhile if the worker would otherwise idle for only a
        # hundredth of a step.
        needed = 1 + math.ceil(self._hop / self._run - 0.01)
        self.depth = max(1, min(needed, self._most))


class TurnRate:
    """Estimates the wait in the queue, from the number of sequences that started in the last `window` seconds."""

    def __init__(self, window: float = 10.0) -> None:
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()

    def observe(self, now: float, num_started: int) -> None:
        """Takes a sample at `now`, in seconds. `num_started`: number of sequences that have ever started."""
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
    """Number of (token, position that it attends to) pairs in a chunk of `num_tokens` that begins at `position`."""
    return num_tokens * (position + (num_tokens + 1) / 2)
