"""Which tokens a sequence may draw, as a plan says it. Meanings as in quire/inference/v1/constraints.proto."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenConstraints:
    grammar: str = ""  # empty: none
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()

    def check(self, vocab_size: int) -> str | None:
        """A sentence for the client about the first field that is out of range, or None."""
        words = (token_id for word in self.bad_words for token_id in word)
        for token_id in (*self.end_token_ids, *self.allowed_token_ids, *words):
            if token_id >= vocab_size:
                return f"A constraint names token {token_id}, but the model has {vocab_size} tokens."
        if not all(self.bad_words):
            return "A bad word has no tokens."
        return None
