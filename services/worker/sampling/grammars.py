"""Compiled grammars: made beside the steps, kept while they are in use and some time after."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING

from shared.grammar import GrammarError, compile_grammar, grammar_threads, has_library

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

# Grammars kept, failures included. A source has 64 KiB at most, and what is made of it in the order of a megabyte.
MAX_GRAMMARS = 512


class Grammars:
    """Thread-safe: the event loop asks for grammars to be compiled, the step thread takes matchers."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """The table of tokens is made with the first grammar, on their thread: it takes up to a second."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: LLTokenizer | None = None
        # One, so that grammars wait for each other and not for the cores that steps run on.
        self._thread = grammar_threads(1)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()

    def prepare(self, grammar: str) -> Future[LLMatcher]:
        """Begins to compile a grammar that is not there. The result stands at the beginning of an output and must not
        be moved. Fails with GrammarError."""
        with self._lock:
            future = self._compiled.get(grammar)
            if future is None:
                future = self._compiled[grammar] = self._thread.submit(self._compile, grammar)
                while len(self._compiled) > MAX_GRAMMARS:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(grammar)
            return future

    def matcher(self, grammar: str) -> LLMatcher:
        """One of its own, for a sequence. Waits where the grammar is not compiled yet. Raises GrammarError."""
        return self.prepare(grammar).result().deep_copy()

    def _compile(self, grammar: str) -> LLMatcher:
        if not has_library():
            raise GrammarError("this worker lacks llguidance, which structures need")
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()
        return compile_grammar(grammar, self._tokenizer)

    def _read_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        try:
            return LLTokenizer(self._tokenizer_json.decode(), self._vocab_size, list(self._eos_token_ids) or None)
        except Exception as error:  # the library raises what it likes
            logger.error("the tokenizer cannot be used for structured output: %s", error)
            raise GrammarError("this model's tokenizer is of a kind that no grammar can be applied to") from error
