"""Truncation of prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truncation:
    """Shortens prompts that have too many tokens: removes their beginning, or with `keeps_beginning` their end."""

    # Number of tokens to keep. None: as many as fit the context together with `max_tokens` tokens of the answer.
    num_tokens: int | None
    keeps_beginning: bool = False

    def apply(self, token_ids: list[int], max_model_len: int, max_tokens: int | None) -> list[int]:
        limit = max(1, max_model_len - (max_tokens or 1)) if self.num_tokens is None else self.num_tokens
        return token_ids[:limit] if self.keeps_beginning else token_ids[-limit:]
