"""Compiles the grammars of structured output. The router compiles a grammar to check it; the worker compiles it to
enforce it.

llguidance is imported only when the first grammar arrives, so a service that gets no grammar runs without llguidance.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Maximum size of a grammar's text. `_limits` bounds what the text expands to.
MAX_GRAMMAR_BYTES = 64 * 1024
# Stack size of the compiling threads. llguidance resolves chains of references by recursion. The longest chain that
# fits into a grammar has 13,000 references, and each takes some 10 KB of stack (measured). Stack pages that are never
# touched take no memory.
STACK_BYTES = 256 * 1024 * 1024

_MAX_MESSAGE_CHARS = 300
# Replacements for messages of llguidance that name its internal options or give no reason. Each key is a part of the
# message.
_IN_OUR_WORDS = {
    "NoExtensionBias": "nothing finite matches it",
    "too many states": "a text is too long for the 'maxLength' or 'pattern' that it must match",
    "too many expressions": "a 'pattern' or 'maxLength' takes too long to match",
    "coerce_one_of": "alternatives of 'oneOf' that may match the same value are not supported; use 'anyOf'",
}


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or a matcher that failed. The message is sent to the client."""


@functools.cache
def has_library() -> bool:
    return importlib.util.find_spec("llguidance") is not None


@functools.cache
def _limits() -> LLParserLimits:
    """Returns limits on compiling a grammar and on computing a mask. A schema of 300 properties uses a tenth of each
    limit. The lexer fuel is enough for some 20 ms of compilation (initial) and some 10 ms per mask (step). A lexer
    state takes 0.4 to 2 KB. All copies of a matcher share them."""
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
    """Compiles a grammar. Returns a matcher that has not consumed any token yet. Call the function on a thread of
    `grammar_threads`, which has a large enough stack. Raises GrammarError."""
    size = len(grammar.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it has {size} bytes; {MAX_GRAMMAR_BYTES} are allowed")
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
    check_matcher(matcher)
    return matcher


def is_usable(grammar: str) -> bool:
    """Returns whether a grammar can be compiled. Call it where `compile_grammar` may be called."""
    from llguidance import LLMatcher

    return len(grammar.encode()) <= MAX_GRAMMAR_BYTES and not LLMatcher.validate_grammar(grammar, limits=_limits())


def check_matcher(matcher: LLMatcher) -> None:
    """Raises GrammarError if the matcher has failed. A failed matcher stays failed."""
    if matcher.is_error():
        # Take only the line with the reason, or the first line if none has one. The other lines point into a generated
        # grammar that the client has not seen.
        lines = matcher.get_error().replace("<non-verbose/>", "").strip().splitlines() or [""]
        reason = next((line for line in lines[1:] if line.startswith("error: ")), lines[0])
        message = next(
            (words for name, words in _IN_OUR_WORDS.items() if name in reason), reason.removeprefix("error: ").strip()
        )
        raise GrammarError(message[:_MAX_MESSAGE_CHARS] or "llguidance failed without a reason")


def grammar_threads(num_threads: int) -> ThreadPoolExecutor:
    """Returns an executor whose threads have a stack large enough to compile any grammar."""
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
    before = threading.stack_size(STACK_BYTES)
    try:
        # threading.stack_size applies only to threads that start before it is reset, so all threads must start now. The
        # executor starts a thread only for a task that finds no idle thread. Each task therefore waits at a barrier,
        # which keeps its thread busy until all threads have started.
        started = threading.Barrier(num_threads + 1)
        for _ in range(num_threads):
            executor.submit(started.wait)
        started.wait()
    finally:
        threading.stack_size(before)
    return executor
