"""Compiles grammars for structured output on a separate thread, while steps run, and keeps the results.

Sequences with the same grammar share a compilation, and so a lexer. A lexer keeps every state that a mask has tried,
and fails when there are too many (`shared.grammar`). A long text of limited length fills it: some ten states per
character, nearly all of which were only tried. A sequence whose lexer is full gets a compilation of its own, which
reads the output again. This takes two states per character, so the new lexer has room for more.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from services.worker.heap import heap_bytes
from services.worker.plan import U32
from services.worker.sampling.grammar_thread import GrammarThread
from shared.grammar import GrammarError, check_matcher, compile_grammar, has_library

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

# Maximum number of cached grammars, including those that failed to compile. The source of a grammar has at most 64 KiB;
# a compiled grammar takes on the order of a megabyte, and with a lexer that long texts have filled 11 MB (40 MB in the
# worst case).
MAX_GRAMMARS = 512
# If the process has so many bytes more in use, for whatever reason, cached grammars are dropped: llguidance does not
# say how much memory a grammar takes.
MAX_HEAP_GROWTH = 2 << 30
# So many of the grammars used last are not dropped.
_NUM_KEPT = 32
# The heap is also measured after so many uses of cached grammars, whose lexers may have grown.
_USES_PER_MEASUREMENT = 16
# Maximum number of compilations for single sequences that wait for their sequence to start, or whose sequence has ended
# before. A scheduler asks for 8 at a time, and remembers 64. Each takes 2 to 7 MB.
_MAX_OWN = 96
# A matcher reads so many tokens of an output at a time, with the interpreter's lock held: 3 to 30 µs each. After them,
# it computes a mask, without the lock. Without masks in between, the lexer's fuel ends after some thousand tokens.
_TOKENS_AT_A_TIME = 32


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
        self._thread = GrammarThread()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        # Those that the cache has dropped, as long as a sequence or a plan has the future. They can still be shared.
        self._dropped: WeakValueDictionary[str, Future[LLMatcher]] = WeakValueDictionary()
        # Compilations for single sequences, by the scheduler's key.
        self._own: OrderedDict[bytes, Future[LLMatcher]] = OrderedDict()
        # Grammars that the thread compiles again, or soon will.
        self._being_renewed: set[str] = set()
        self._num_uses = 0
        # Size of the heap that its growth is counted from. Only the compiling thread uses it.
        self._heap_floor = sys.maxsize

    def prepare(self, grammar: str) -> Future[LLMatcher]:
        """Starts to compile a grammar, unless it is in the cache. Returns a future of the grammar's matcher, which is
        in the state at the start of an output. The matcher is shared, so callers must not advance it. While a caller
        keeps the future, others get the same one, unless the matcher has failed (`renew`). If the grammar cannot be
        compiled, the future fails with GrammarError."""
        dropped: list[Future[LLMatcher]] = []  # freed after the lock is
        with self._lock:
            future = self._compiled.pop(grammar, None) or self._dropped.pop(grammar, None)
            if future is None:
                future = self._thread.run(lambda: self._compile(grammar))
            else:
                self._num_uses += 1
                if self._num_uses % _USES_PER_MEASUREMENT == 0:
                    self._thread.run(self._bound_memory)
            self._compiled[grammar] = future  # at the end: used last
            while len(self._compiled) > MAX_GRAMMARS:
                dropped.append(self._drop(next(iter(self._compiled))))
            return future

    def _drop(self, grammar: str) -> Future[LLMatcher]:
        """Drops a grammar from the cache, and returns it. The caller holds the lock. It should keep the result until it
        has released the lock, because freeing a grammar takes time."""
        self._dropped[grammar] = future = self._compiled.pop(grammar)
        return future

    def prepare_own(self, key: bytes, grammar: str, output: U32) -> Future[LLMatcher]:
        """Starts to compile a grammar for one sequence, and to read its output. Compilations that are shared go before.
        If the grammar cannot be compiled, or its lexer cannot read the output, the future fails with GrammarError."""
        with self._lock:
            future = self._own[key] = self._thread.run_later(lambda: self._read(key, grammar, output))
            while len(self._own) > _MAX_OWN:
                self._own.popitem(last=False)
            return future

    def own(self, key: bytes) -> Future[LLMatcher] | None:
        """Returns the future of `prepare_own`; None if it has failed, or was forgotten."""
        with self._lock:
            return self._own.get(key)

    def take_own(self, key: bytes) -> LLMatcher | None:
        """Returns the matcher of `prepare_own`, for the sequence that will advance it; None if there is none."""
        with self._lock:
            future = self._own.pop(key, None)
        return future.result() if future is not None and future.done() and future.exception() is None else None

    def forget_own(self) -> None:
        """Forgets the compilations for single sequences, whose scheduler is gone."""
        with self._lock:
            own, self._own = self._own, OrderedDict()
        self._thread.run_later(own.clear)  # freeing one takes about a millisecond

    def renew(self, grammar: str, failed: Future[LLMatcher]) -> None:
        """Compiles a grammar again after a copy of `failed`, the matcher of `prepare`, has failed; then replaces it in
        the cache. Does not wait for this."""
        with self._lock:
            if self._dropped.get(grammar) is failed:
                del self._dropped[grammar]
            if self._compiled.get(grammar) is failed and grammar not in self._being_renewed:
                self._being_renewed.add(grammar)
                self._thread.run(lambda: self._renew(grammar))

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

    def _read(self, key: bytes, grammar: str, output: U32) -> LLMatcher:
        try:
            matcher = self._compile(grammar)
            mask = np.zeros(-(-self._vocab_size // 32), np.uint32)
            for start in range(0, len(output), _TOKENS_AT_A_TIME):
                matcher.consume_tokens(output[start : start + _TOKENS_AT_A_TIME].tolist())
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                check_matcher(matcher)
        except BaseException:
            with self._lock:
                self._own.pop(key, None)
            raise
        return matcher

    def _compile(self, grammar: str) -> LLMatcher:
        if not has_library():
            raise GrammarError("llguidance, which structured output needs, is not installed on this worker")
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()
        self._bound_memory()
        return compile_grammar(grammar, self._tokenizer)

    def _bound_memory(self) -> None:
        """Drops grammars, those first that were not used for longest, until the heap is small enough."""
        heap = heap_bytes()
        self._heap_floor = min(self._heap_floor, heap)
        num_dropped = 0
        while heap > self._heap_floor + MAX_HEAP_GROWTH and self._drop_oldest():
            num_dropped += 1
            heap = heap_bytes()
        if heap > self._heap_floor + MAX_HEAP_GROWTH:
            # Grammars of running sequences or something else take the memory. To drop all others again would not help.
            self._heap_floor = heap - MAX_HEAP_GROWTH // 2
        if num_dropped:
            logger.info("dropped %d compiled grammars to save memory; the heap has %d MB", num_dropped, heap >> 20)

    def _drop_oldest(self) -> bool:
        """Drops the compiled grammar that was not used for longest. Returns whether there was one. Freeing it takes
        about a millisecond, in which the interpreter's lock is held."""
        with self._lock:
            candidates = islice(self._compiled.items(), max(0, len(self._compiled) - _NUM_KEPT))
            oldest = next((grammar for grammar, future in candidates if future.done()), None)
            if oldest is None:
                return False
            dropped = self._drop(oldest)
        del dropped  # frees it; others need not wait for self._lock meanwhile
        return True

    def _read_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        try:
            return LLTokenizer(self._tokenizer_json.decode(), self._vocab_size, list(self._eos_token_ids) or None)
        except Exception as error:  # llguidance has no error type of its own
            logger.error("the tokenizer cannot be used for structured output: %s", error)
            raise GrammarError("this model's tokenizer does not support grammars") from error
