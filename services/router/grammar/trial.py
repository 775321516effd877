"""A grammar is compiled and walked through, to find out whether it can be run.

What is hostile runs into the limits of shared/grammar.py, or those of the process that this is done in. The walk is
over bytes instead of a model's tokens: it needs no table of them, and every token is some bytes.
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
    """What llguidance's wrapper asks for: a token for each byte, and one for the end."""

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
    """Its grammar in the library's form. To be called on one of `grammar_threads`. Raises GrammarError."""
    grammar = structure.to_grammar()
    matcher = compile_grammar(grammar, byte_tokenizer())
    for seed in range(_NUM_WALKS):
        _walk(matcher.deep_copy(), random.Random(seed))
    return grammar


def _walk(matcher: LLMatcher, chance: random.Random) -> None:
    """Raises GrammarError where the library gives up, or an output cannot go on and must not end."""
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
