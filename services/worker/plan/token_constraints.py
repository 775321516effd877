"""Constraints on the tokens that a sequence may sample. quire/inference/v1/constraints.proto defines their meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    num_tokens: int
    end_token_id: int
    begin_token_id: int | None = None  # None: the output begins inside the reasoning


@dataclass(frozen=True, slots=True)
class TokenConstraints:
    grammar: str = ""  # empty: no grammar
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all tokens are allowed
    bad_words: tuple[tuple[int, ...], ...] = ()
    thinking: ThinkingLimit | None = None

    @property
    def limits_thinking_alone(self) -> bool:
        """Whether the thinking limit is the only constraint."""
        return self == TokenConstraints(thinking=self.thinking)

    def check(self, vocab_size: int) -> str | None:
        """Returns a sentence for the client about the first field that is out of range, or None."""
        words = (token_id for word in self.bad_words for token_id in word)
        tags = () if self.thinking is None else (self.thinking.end_token_id, self.thinking.begin_token_id or 0)
        for token_id in (*self.end_token_ids, *self.allowed_token_ids, *words, *tags):
            if token_id >= vocab_size:
                return f"A constraint names token {token_id}, but the model has {vocab_size} tokens."
        if not all(self.bad_words):
            return "A bad word has no tokens."
        return None
