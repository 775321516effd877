"""Compiles grammars for structured output on a separate thread, while steps run, and caches the results."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.grammar import GrammarError, compile_grammar, grammar_threads, has_library

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

# Maximum number of cached grammars, including those that failed to compile. The source of a grammar has at most 64 KiB;
# a compiled grammar takes on the order of a megabyte, and up to 40 MB once its lexer has as many states as it may.
MAX_GRAMMARS = 128
# A grammar that takes longer to compile is not compiled again while steps wait.
_MAX_SECONDS_AGAIN = 0.1


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """`matcher` is in the state at the start of an output. It is shared: copy it before it advances."""

    matcher: LLMatcher
    # Processor time that the compilation took.
    seconds: float


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
        # Compiles grammars again, so that this never waits for first compilations, which can take long.
        self._thread_for_again: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Future[CompiledGrammar]] = OrderedDict()

    def prepare(self, grammar: str) -> Future[CompiledGrammar]:
        """Starts to compile a grammar, unless it is in the cache. If the grammar cannot be compiled, the future fails
        with GrammarError."""
        with self._lock:
            future = self._compiled.get(grammar)
            if future is None:
                future = self._compiled[grammar] = self._thread.submit(self._compile, grammar)
                while len(self._compiled) > MAX_GRAMMARS:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(grammar)
            return future

    def get(self, grammar: str) -> CompiledGrammar:
        """Waits if the grammar is still being compiled. Raises GrammarError."""
        return self.prepare(grammar).result()

    def another(self, grammar: str, last: CompiledGrammar) -> CompiledGrammar | None:
        """Returns a compilation of the grammar other than `last`: the one in the cache, or a new one, which takes its
        place. Returns None if compiling takes too long for the step thread, which calls this."""
        if last.seconds > _MAX_SECONDS_AGAIN:
            return None
        with self._lock:
            cached = self._compiled.get(grammar)
            if cached is not None and cached.done() and cached.exception() is None and cached.result() is not last:
                return cached.result()
            self._thread_for_again = self._thread_for_again or grammar_threads(1)
            future = self._compiled[grammar] = self._thread_for_again.submit(self._compile, grammar)
        return future.result()

    def _compile(self, grammar: str) -> CompiledGrammar:
        if not has_library():
            raise GrammarError("llguidance, which structured output needs, is not installed on this worker")
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()
        began = time.thread_time()
        matcher = compile_grammar(grammar, self._tokenizer)
        return CompiledGrammar(matcher, time.thread_time() - began)

    def _read_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        try:
            return LLTokenizer(self._tokenizer_json.decode(), self._vocab_size, list(self._eos_token_ids) or None)
        except Exception as error:  # llguidance has no error type of its own
            logger.error("the tokenizer cannot be used for structured output: %s", error)
            raise GrammarError("this model's tokenizer does not support grammars") from error
