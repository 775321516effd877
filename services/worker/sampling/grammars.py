"""Compiles grammars for structured output on a separate thread, while steps run, and caches the results."""

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

# Maximum number of cached grammars, including those that failed to compile. The source of a grammar has at most 64 KiB;
# a compiled grammar takes on the order of a megabyte.
MAX_GRAMMARS = 512


class Grammars:
    """The cache of compiled grammars. Thread-safe: the event loop starts compilations, and the step thread takes
    matchers."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """Does not parse `tokenizer_json` yet. The compiling thread parses it, which takes up to a second, before it
        compiles the first grammar."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: LLTokenizer | None = None
        # A single thread, so that compilations never take more than one core from the steps.
        self._thread = grammar_threads(1)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        # Grammars that the thread compiles again, or soon will.
        self._being_renewed: set[str] = set()

    def prepare(self, grammar: str) -> Future[LLMatcher]:
        """Starts to compile a grammar, unless it is in the cache. Returns a future of the grammar's matcher, which is
        in the state at the start of an output. The matcher is shared, so callers must not advance it. If the grammar
        cannot be compiled, the future fails with GrammarError."""
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
        """Returns a new matcher for one sequence. Waits if the grammar is still being compiled. Raises GrammarError."""
        return self.prepare(grammar).result().deep_copy()

    def renew(self, grammar: str) -> None:
        """Compiles a grammar again after one of its matchers has failed, and then replaces it in the cache. Does not
        wait for this. All copies of a matcher share one lexer. The lexer keeps all its states, and once there are too
        many, it fails for every other output, too."""
        with self._lock:
            cached = self._compiled.get(grammar)
            was_compiled = cached is not None and cached.done() and cached.exception() is None
            if was_compiled and grammar not in self._being_renewed:
                self._being_renewed.add(grammar)
                self._thread.submit(self._renew, grammar)

    def _renew(self, grammar: str) -> None:
        renewed: Future[LLMatcher] = Future()
        try:
            renewed.set_result(self._compile(grammar))
        except GrammarError as error:
            logger.error("a grammar that was compiled before cannot be compiled again: %s", error)
        finally:
            with self._lock:
                self._being_renewed.remove(grammar)
                if renewed.done() and grammar in self._compiled:
                    self._compiled[grammar] = renewed

    def _compile(self, grammar: str) -> LLMatcher:
        if not has_library():
            raise GrammarError("llguidance, which structured output needs, is not installed on this worker")
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()
        return compile_grammar(grammar, self._tokenizer)

    def _read_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        try:
            return LLTokenizer(self._tokenizer_json.decode(), self._vocab_size, list(self._eos_token_ids) or None)
        except Exception as error:  # llguidance has no error type of its own
            logger.error("the tokenizer cannot be used for structured output: %s", error)
            raise GrammarError("this model's tokenizer does not support grammars") from error
