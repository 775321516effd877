"""Turns a request's parameters about allowed tokens into checked constraints, from which the worker makes masks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import compress

from services.router.columns import ids_to_bytes
from services.router.constraints.grammar_checker import INVALID_STRUCTURE, grammar_checks
from services.router.constraints.values import AroundStructure, BadWords, ThinkingLimit, TokenConstraints
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.grammar import Structure
from services.router.model import ServedModel
from services.router.parameters import StopConditions
from shared.grammar import MAX_GRAMMAR_BYTES

MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARS = 512
# Maximum number of tokens of all bad words together. If a word is tokenized in two ways, without and with a space
# before it, the tokens of both count. The scheduler's limit is the same.
MAX_BAD_WORD_TOKENS = 1 << 18
# Maximum size of all copies of a request's constraints together. Each prompt of the request is submitted with its own
# copy.
MAX_CONSTRAINT_BYTES = 2**24


async def resolve_constraints(
    model: ServedModel,
    structure: Structure | None,
    stop: StopConditions,
    allowed_token_ids: tuple[int, ...] | None,
    bad_words: tuple[str, ...],
    path: str = "",
    around_structure: AroundStructure | None = None,
    thinking: ThinkingLimit | None = None,
) -> TokenConstraints | None:
    """Returns the constraints; None if every token is allowed. `path`: prefix of field names in errors.
    `around_structure`: makes the grammar of the whole output from that of `structure`; None: the whole output is the
    structure. Raises ApiError."""
    vocab_size = model.info.vocab_size
    allowed = b""
    if allowed_token_ids is not None:
        given, param = allowed_token_ids, f"{path}allowed_token_ids"
        allowed = await model.tokenizer.threads.run(len(given), lambda: _allowed(given, vocab_size, param))
    if stop.max_tokens is not None and stop.min_tokens > stop.max_tokens:
        param = f"{path}min_tokens"
        raise invalid(f"Invalid '{param}': {stop.min_tokens} exceeds the output limit of {stop.max_tokens}.", param)
    grammar = "" if structure is None else await _grammar(model, structure, around_structure)
    if not (grammar or stop.min_tokens or allowed_token_ids or bad_words or thinking):
        return None
    return TokenConstraints(
        grammar,
        stop.min_tokens,
        ids_to_bytes(sorted(stop.end_token_ids(model.info.eos_token_ids))) if stop.min_tokens else b"",
        allowed,
        await _bad_word_token_ids(model, bad_words, f"{path}bad_words"),
        thinking,
        _strictest(structure, allowed_token_ids, bad_words, path),
    )


def check_copies(constraints: TokenConstraints, num_prompts: int, structure: Structure | None, path: str = "") -> None:
    """Raises ApiError if the constraints are too large for one copy per prompt. The error names the largest field.
    `structure`, `path`: as in resolve_constraints."""
    words = constraints.bad_words
    sizes = {
        f"{path}bad_words": len(words.token_ids) + len(words.offsets),
        f"{path}allowed_token_ids": len(constraints.allowed_token_ids),
        f"{path}stop_token_ids": len(constraints.end_token_ids),
    }
    if structure is not None:
        sizes[structure.param] = len(constraints.grammar.encode())
    total = num_prompts * sum(sizes.values())
    if total > MAX_CONSTRAINT_BYTES:
        param = max(sizes, key=sizes.__getitem__)
        message = (
            f"Invalid '{param}': the request's constraints on tokens take {total} bytes, with a copy for each of its "
            f"{num_prompts} prompts; at most {MAX_CONSTRAINT_BYTES} are allowed. Send fewer prompts per request."
        )
        raise invalid(message, param, "too_many_constraints")


def _strictest(
    structure: Structure | None, allowed_token_ids: tuple[int, ...] | None, bad_words: tuple[str, ...], path: str
) -> str:
    """Returns the name of the field that probably excludes the most tokens. The error for the case that no token is
    allowed names this field."""
    if structure is not None:
        return structure.param
    if allowed_token_ids:
        return f"{path}allowed_token_ids"
    return f"{path}bad_words" if bad_words else f"{path}min_tokens"


def _allowed(token_ids: tuple[int, ...], vocab_size: int, param: str) -> bytes:
    """Returns the ids in their order, each once, as u32[]. Raises ApiError. Sorting a whole vocabulary would hold
    Python's lock for a tenth of a second."""
    if not token_ids:
        raise invalid(f"Invalid '{param}': it must not be empty.", param, "empty_array")
    if len(token_ids) > vocab_size:
        raise invalid(f"Invalid '{param}': {len(token_ids)} tokens are listed; the model has {vocab_size}.", param)
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            message = f"Invalid '{param}': token id {token_id} is out of range; the model has {vocab_size} tokens."
            raise invalid(message, param)
    is_allowed = bytearray(vocab_size)
    for token_id in token_ids:
        is_allowed[token_id] = 1
    return ids_to_bytes(array("I", compress(range(vocab_size), is_allowed)))


async def _grammar(model: ServedModel, structure: Structure, around_structure: AroundStructure | None) -> str:
    if not model.info.eos_token_ids:
        message = f"The model `{model.info.name}` has no end token, so a structured output could not end."
        raise ApiError(ErrorKind.UNSUPPORTED, message, structure.param)
    grammar = await grammar_checks().check(structure)
    if around_structure is None:
        return grammar
    whole = around_structure.around(grammar)
    size = len(whole.encode())
    if size > MAX_GRAMMAR_BYTES:
        message = (
            f"Invalid '{structure.param}': its grammar, with reasoning and the schemas of strict tools, has {size} "
            f"bytes; at most {MAX_GRAMMAR_BYTES} are allowed."
        )
        raise invalid(message, structure.param, INVALID_STRUCTURE)
    return whole


async def _bad_word_token_ids(model: ServedModel, words: tuple[str, ...], param: str) -> BadWords:
    """Tokenizes bad words as vLLM does: each word without leading space, and also after a space if the space changes
    the first token but not the number of tokens."""
    if not words:
        return BadWords()
    if len(words) > MAX_BAD_WORDS:
        raise invalid(f"Invalid '{param}': at most {MAX_BAD_WORDS} words are allowed, but got {len(words)}.", param)
    for word in words:
        if not word.strip() or len(word) > MAX_BAD_WORD_CHARS:
            message = f"Invalid '{param}': a word must have 1 to {MAX_BAD_WORD_CHARS} characters, not only spaces."
            raise invalid(message, param)
    plain = await model.tokenizer.encode([word.lstrip() for word in words], add_special_tokens=False)
    _check_num_tokens(plain, param)
    spaced = await model.tokenizer.encode([f" {word.lstrip()}" for word in words], add_special_tokens=False)
    runs = []
    for alone, after_space in zip(plain, spaced, strict=True):
        runs.append(alone)
        if after_space and alone and after_space[0] != alone[0] and len(after_space) == len(alone):
            runs.append(after_space)
    _check_num_tokens(runs, param)
    return BadWords.of([run for run in runs if run])


def _check_num_tokens(runs: Iterable[Sequence[int]], param: str) -> None:
    num_tokens = sum(map(len, runs))
    if num_tokens > MAX_BAD_WORD_TOKENS:
        message = f"Invalid '{param}': the words have {num_tokens} tokens; at most {MAX_BAD_WORD_TOKENS} are allowed."
        raise invalid(message, param, "too_many_tokens")
