"""Grammars are tried here before a request is taken: beside the event loop, and within a bound.

What is hostile runs into the limits of shared/grammar.py when it is compiled, or in the first steps of a walk through
it; or, as some small grammars are beyond all of them, into those of a process of its own, which takes a tenth of a
second for each structure that is new. The walk is over bytes instead of a model's tokens: it needs no table of them,
and every token is some bytes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.router.errors import ApiError, ErrorKind, invalid, overloaded
from services.router.structure import Structure
from shared.grammar import MAX_GRAMMAR_BYTES, GrammarError, check_matcher, compile_grammar, grammar_threads, has_library

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# The code of the error.
INVALID_STRUCTURE = "invalid_structure"
_MAX_PENDING = 64
# The process has its own limit of computing time; this is for one that does not get to compute.
_MAX_SECONDS_APART = 30.0
_MAX_CHECKED = 256
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


class GrammarChecks:
    """Results are kept, refusals too, so that what is sent again and again is tried once. One thread: a hostile client
    holds up other structured requests' checks, and nothing else."""

    def __init__(self) -> None:
        self._thread = grammar_threads(1)
        self._checked: OrderedDict[Structure, str | GrammarError] = OrderedDict()
        self._num_pending = 0

    async def check(self, structure: Structure) -> str:
        """Its grammar in the library's form. Raises ApiError, naming the structure's field."""
        if not has_library():
            raise ApiError(
                ErrorKind.UNSUPPORTED, "This router lacks llguidance, which structures need.", structure.param
            )
        result = self._checked.get(structure)
        if len(structure.source) > MAX_GRAMMAR_BYTES:  # nor is it kept
            result = GrammarError(f"it has {len(structure.source)} characters; {MAX_GRAMMAR_BYTES} are allowed")
        elif result is None:
            if self._num_pending >= _MAX_PENDING:
                raise overloaded("Too many grammars are waiting to be checked.")
            self._num_pending += 1
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._thread, _try_apart, structure)
            finally:
                self._num_pending -= 1
            self._checked[structure] = result
            while len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)
        else:
            self._checked.move_to_end(structure)
        if isinstance(result, GrammarError):
            what = structure.kind.value.replace("_", " ")
            message = f"Invalid '{structure.param}': this {what} cannot be used to structure an output: {result}."
            raise invalid(message, structure.param, INVALID_STRUCTURE)
        return result

    def try_here(self, structure: Structure) -> str | GrammarError:
        """In this process, on a thread with room for deep ones."""
        return self._thread.submit(self._compile, structure).result()

    def _compile(self, structure: Structure) -> str | GrammarError:
        try:
            grammar = structure.to_grammar()
            matcher = compile_grammar(grammar, byte_tokenizer())
            for seed in range(_NUM_WALKS):
                _walk(matcher.deep_copy(), random.Random(seed))
        except GrammarError as error:
            return error
        return grammar


def _try_apart(structure: Structure) -> str | GrammarError:
    """In a process of its own, with limits."""
    command = [sys.executable, "-m", "services.router.grammar_check_process"]
    given = json.dumps({"kind": structure.kind.value, "source": structure.source})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        child = subprocess.run(
            command, input=given.encode(), capture_output=True, timeout=_MAX_SECONDS_APART, env=environment, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return GrammarError("it takes too much time or memory to compile")
    result = json.loads(child.stdout)
    return GrammarError(result["error"]) if "error" in result else str(result["grammar"])


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


@functools.cache
def grammar_checks() -> GrammarChecks:
    """The process's one; its thread starts with the first structured request."""
    return GrammarChecks()
