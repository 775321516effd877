"""Grammars of outputs: how the router that checks one and the worker that runs it have the library compile it.

The library, llguidance, is imported with the first grammar: who is sent none can do without it.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Of a grammar as the library takes it. What becomes of so many is bounded by `_limits`.
MAX_GRAMMAR_BYTES = 64 * 1024
# The library follows chains of references by recursion: of the longest that fit into a grammar, 13,000, with some 10 KB
# for each (measured). Pages that nothing reaches take no memory.
STACK_BYTES = 256 * 1024 * 1024

_MAX_MESSAGE_CHARS = 300
# Where the library names an option of its own, or nothing at all, by what stands in its message.
_IN_OUR_WORDS = {
    "NoExtensionBias": "nothing finite matches it",
    "coerce_one_of": "alternatives of 'oneOf' that may match the same value are not supported; use 'anyOf'",
}


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or a matcher that failed. The text is a sentence for the client."""


@functools.cache
def has_library() -> bool:
    return importlib.util.find_spec("llguidance") is not None


@functools.cache
def _limits() -> LLParserLimits:
    """A schema of 300 properties takes a tenth of each. The fuel is what a compilation and one mask may take: some 20
    and some 10 ms; states of the lexer are 1 to 2 KB each, and every sequence has its own."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=300_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def compile_grammar(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """At the beginning of an output. To be called on one of `grammar_threads`. Raises GrammarError."""
    size = len(grammar.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it has {size} bytes; {MAX_GRAMMAR_BYTES} are allowed")
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
    check_matcher(matcher)
    return matcher


def check_matcher(matcher: LLMatcher) -> None:
    """Raises GrammarError where it has failed; it then stays so."""
    if matcher.is_error():
        # Between the first line and the reason are places in a grammar that the client has not written.
        lines = matcher.get_error().replace("<non-verbose/>", "").strip().splitlines() or [""]
        reason = next((line for line in lines[1:] if line.startswith("error: ")), lines[0])
        message = next(
            (words for name, words in _IN_OUR_WORDS.items() if name in reason), reason.removeprefix("error: ").strip()
        )
        raise GrammarError(message[:_MAX_MESSAGE_CHARS] or "the library failed")


def grammar_threads(num_threads: int) -> ThreadPoolExecutor:
    """Threads with room for the recursion of compiling."""
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
    before = threading.stack_size(STACK_BYTES)
    try:
        # A thread has the size that is set when it starts; the executor starts one for each task that finds none idle.
        started = threading.Barrier(num_threads + 1)
        for _ in range(num_threads):
            executor.submit(started.wait)
        started.wait()
    finally:
        threading.stack_size(before)
    return executor
