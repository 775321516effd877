"""How one sequence wants its next token chosen. Meanings and ranges are those of `sampling.proto`."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    seed: int = 0  # uint64
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def check(self, vocab_size: int) -> str | None:
        """What is out of range, or None."""
        rules = (
            (0.0 <= self.temperature <= 2.0, "temperature"),
            (self.top_k >= 0, "top_k"),
            (0.0 < self.top_p <= 1.0, "top_p"),
            (0.0 <= self.min_p <= 1.0, "min_p"),
            (0.0 < self.repetition_penalty <= 2.0, "repetition_penalty"),
            (-2.0 <= self.presence_penalty <= 2.0, "presence_penalty"),
            (-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty"),
            (all(0 <= token < vocab_size and -100 <= bias <= 100 for token, bias in self.logit_bias), "logit_bias"),
            (self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs"),
        )
        return next((f"{name} is out of range" for valid, name in rules if not valid), None)
