"""The state of one sequence's output in its grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from services.worker.sampling.grammars import CompiledGrammar, Grammars
from shared.grammar import LexerStatesError, matcher_error

if TYPE_CHECKING:
    from llguidance import LLMatcher

# A sequence with more tokens takes no other compilation: a matcher reads a token in 3 to 30 µs, while all other
# sequences wait.
_MAX_TOKENS = 8192
# Least number of new tokens between two times that a sequence takes another compilation.
_TOKENS_BETWEEN = 64
# The compilation in the cache can be one that another sequence took and has filled since. The next is new.
_MAX_COMPILATIONS = 2


class SequenceGrammar:
    """Advances with the sequence's tokens, and says which tokens can follow.

    A lexer keeps all states that it has been in or has tried, and fails when there are too many. A long string of
    limited length has some ten states per character, nearly all of which belong to tokens that were only tried. And all
    sequences with the same compilation of a grammar share its lexer. So if the lexer fails, the sequence takes another
    compilation, whose lexer has few states, and reads its output again.
    """

    def __init__(self, grammars: Grammars, grammar: str, output: Sequence[int]) -> None:
        """`output`: tokens that the sequence has already. Raises GrammarError."""
        self._grammars, self._grammar = grammars, grammar
        self._output = list(output)
        # Length of the output when the sequence last took another compilation.
        self._taken_at = -_TOKENS_BETWEEN
        self._compiled = grammars.get(grammar)
        self._matcher = self._read(self._compiled)
        self._retry(lambda: None)

    def advance(self, token_id: int) -> None:
        # Steps that were launched before the host knew that the output had ended still yield tokens. These tokens are
        # discarded later, so the matcher does not see them.
        if not self._matcher.is_stopped():
            self._output.append(token_id)
            self._matcher.consume_token(token_id)

    def write_mask(self, address: int, num_bytes: int) -> None:
        """Writes one bit per token to `address`: 1 if the token can follow. Raises GrammarError."""

        def write() -> None:
            self._matcher.unsafe_compute_mask_ptr(address, num_bytes)

        write()
        self._retry(write)

    def _retry(self, act: Callable[[], None]) -> None:
        """If the lexer has failed, takes another compilation and calls `act`, whose effect is lost. Raises GrammarError
        if this does not help, or if the matcher has failed otherwise."""
        error = matcher_error(self._matcher)
        if error is None:
            return
        num_tokens = len(self._output)
        may_retry = num_tokens <= _MAX_TOKENS and num_tokens - self._taken_at >= _TOKENS_BETWEEN
        if isinstance(error, LexerStatesError) and may_retry:
            self._taken_at = num_tokens
            for _ in range(_MAX_COMPILATIONS):
                compiled = self._grammars.another(self._grammar, self._compiled)
                if compiled is None:
                    break
                self._compiled, self._matcher = compiled, self._read(compiled)
                act()
                if not self._matcher.is_error():
                    return
        raise error

    def _read(self, compiled: CompiledGrammar) -> LLMatcher:
        """Returns a matcher that has read the output."""
        matcher = compiled.matcher.deep_copy()
        matcher.consume_tokens(self._output)
        return matcher
