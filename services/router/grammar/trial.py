"""Tries a grammar: compiles it and generates a few short outputs.

A hostile grammar exceeds the limits of shared/grammar.py or of the process here. The outputs are made of bytes instead
of a model's tokens: every token consists of bytes, and bytes need no vocabulary.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.router.grammar.structure import Structure
from shared.grammar import GrammarError, check_matcher, compile_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_NUM_WALKS = 4
_WALK_BYTES = 24
_EOS = 256


class _ByteTokenizer:
    """Implements the interface of llguidance's wrapper: one token per byte, and an end token."""

    eos_token_id = _EOS
    bos_token_id = None
    tokens: Sequence[bytes] = [*(bytes([byte]) for byte in range(_EOS)), b"<end>"]
    special_token_ids = (_EOS,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@functools.cache
def byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_ByteTokenizer()), slices=[])


def try_structure(structure: Structure) -> str:
    """Returns the structure's grammar in llguidance's form. Call it on one of `grammar_threads`. Raises
    GrammarError."""
    grammar = structure.to_grammar()
    matcher = compile_grammar(grammar, byte_tokenizer())
    for seed in range(_NUM_WALKS):
        _walk(matcher.deep_copy(), random.Random(seed))
    return grammar


def _walk(matcher: LLMatcher, chance: random.Random) -> None:
    """Generates one output. Raises GrammarError if llguidance fails, or if an output can neither continue nor end."""
    for _ in range(_WALK_BYTES):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        check_matcher(matcher)
        allowed = [token for token in range(_EOS + 1) if mask >> token & 1]
        if not allowed:
            raise GrammarError("nothing matches it")
        token = chance.choice(allowed)
        if token == _EOS:
            return
        matcher.consume_token(token)
        check_matcher(matcher)
