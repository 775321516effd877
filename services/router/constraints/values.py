"""Which tokens a request allows, as the scheduler is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol

from services.router.columns import ids_to_bytes


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """The longest reasoning, and the tokens that begin and end it."""

    num_tokens: int
    end_token_id: int
    # None: the output begins inside the reasoning.
    begin_token_id: int | None = None


class AroundStructure(Protocol):
    """Makes a grammar of a whole output from that of the structure in it."""

    def around(self, structure: str) -> str:
        """`structure`: its grammar in the library's form, as the result is."""


@dataclass(frozen=True, slots=True)
class BadWords:
    """Columns, as in quire/inference/v1/constraints.proto: all words' tokens, and where each word begins and ends."""

    token_ids: bytes = b""
    offsets: bytes = b""

    @staticmethod
    def of(words: Sequence[Sequence[int]]) -> BadWords:
        """Of the tokens of each word, at least one."""
        if not words:
            return BadWords()
        offsets = list(accumulate(map(len, words), initial=0))
        return BadWords(ids_to_bytes(list(chain.from_iterable(words))), ids_to_bytes(offsets))


@dataclass(frozen=True, slots=True)
class TokenConstraints:
    """Meanings as in quire/inference/v1/constraints.proto. Token ids are columns: all prompts of a request are
    submitted with them, and a list takes nine times the memory."""

    # As the library takes it, checked; empty: none.
    grammar: str = ""
    min_tokens: int = 0
    # Those that min_tokens is about.
    end_token_ids: bytes = b""
    # Empty: all.
    allowed_token_ids: bytes = b""
    bad_words: BadWords = BadWords()
    thinking: ThinkingLimit | None = None
    # The field to name where they leave no token to draw.
    param: str = ""
