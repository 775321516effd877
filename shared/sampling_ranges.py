"""The range of values that `sampling.proto` allows for each sampling parameter. The scheduler and the worker refuse
other values."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, both included. `above_low` excludes `low`."""

    low: float
    high: float
    above_low: bool = False

    def __contains__(self, value: float) -> bool:
        """Returns False for NaN."""
        return self.low <= value <= self.high and not (self.above_low and value == self.low)

    def __str__(self) -> str:
        return f"{'over' if self.above_low else 'from'} {self.low:g} to {self.high:g}"


RANGES = {
    "temperature": Range(0, 2),
    "top_k": Range(0, 2**32 - 1),
    "top_p": Range(0, 1, above_low=True),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0, 100, above_low=True),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "logprobs": Range(0, MAX_LOGPROBS),
    "prompt_logprobs": Range(0, MAX_LOGPROBS),
}
BIAS_RANGE = Range(-100, 100)
