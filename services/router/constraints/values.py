"""A request's constraints on tokens, in the form that the scheduler gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol

from services.router.columns import ids_to_bytes


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """The maximum number of reasoning tokens, and the tokens that begin and end the reasoning."""

    num_tokens: int
    end_token_id: int
    # None: the output begins inside the reasoning.
    begin_token_id: int | None = None


class AroundStructure(Protocol):
    """Makes the grammar of a whole output from the grammar of the structure in it."""

    def around(self, structure: str) -> str:
        """Returns the grammar of the whole output. `structure` and the result are in llguidance's form."""


@dataclass(frozen=True, slots=True)
class BadWords:
    """Token ids of all bad words, one word after the other, and the offsets at which each word begins and ends, as in
    quire/inference/v1/constraints.proto."""

    token_ids: bytes = b""
    offsets: bytes = b""

    @staticmethod
    def of(words: Sequence[Sequence[int]]) -> BadWords:
        """Encodes words. Each word is given as its token ids, at least one."""
        if not words:
            return BadWords()
        offsets = list(accumulate(map(len, words), initial=0))
        return BadWords(ids_to_bytes(list(chain.from_iterable(words))), ids_to_bytes(offsets))


@dataclass(frozen=True, slots=True)
class TokenConstraints:
    """A request's checked constraints. Fields are as in quire/inference/v1/constraints.proto. Token ids are packed as
    bytes, because each prompt is submitted with a copy of them and a list would take nine times the memory."""

    # The checked grammar, in llguidance's form. Empty: there is no grammar.
    grammar: str = ""
    min_tokens: int = 0
    # End tokens, which are forbidden until the output has min_tokens tokens.
    end_token_ids: bytes = b""
    # Empty: all tokens are allowed.
    allowed_token_ids: bytes = b""
    bad_words: BadWords = BadWords()
    thinking: ThinkingLimit | None = None
    # Name of the request's field that is at fault if the constraints allow no token; for the error.
    param: str = ""
