"""Sampling parameters of one sequence. `sampling.proto` defines meanings and ranges."""

from __future__ import annotations

from dataclasses import dataclass

from shared.sampling_ranges import BIAS_RANGE, MAX_LOGPROBS, RANGES


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # pairs of token id and value added to its logit
    seed: int = 0  # uint64
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()  # reported instead of the likeliest tokens

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def check(self, vocab_size: int) -> str | None:
        """Returns a sentence for the client about the first invalid field, or None if all fields are valid."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                return f"{name} must be {allowed}, but is {value:g}."
        for token_id, bias in self.logit_bias:
            if not 0 <= token_id < vocab_size:
                return f"logit_bias names token {token_id}, but the model has {vocab_size} tokens."
            if bias not in BIAS_RANGE:
                return f"logit_bias must be {BIAS_RANGE}, but is {bias:g} for token {token_id}."
        if len(self.logprob_token_ids) > MAX_LOGPROBS:
            return f"logprob_token_ids has {len(self.logprob_token_ids)} tokens; {MAX_LOGPROBS} at most."
        if len(set(self.logprob_token_ids)) < len(self.logprob_token_ids):
            return "logprob_token_ids names a token twice."
        for token_id in self.logprob_token_ids:
            if not 0 <= token_id < vocab_size:
                return f"logprob_token_ids names token {token_id}, but the model has {vocab_size} tokens."
        return None
