"""Checks every field of a Submit before the core gets it, so that a bad request does not make other requests fail.

A worker that gets a malformed plan ends the scheduler's stream, and all sequences on the worker must start again. So
every column (bytes that hold u32 values) from a router is checked before it becomes part of a plan. A column's length
is checked before the column is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from quire.inference.v1 import constraints_pb2, model_pb2, pooling_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.converters import u32
from services.scheduler.core import ErrorKind, Failure, RefusedError
from shared.grammar import MAX_GRAMMAR_BYTES
from shared.sampling_ranges import BIAS_RANGE, MAX_LOGPROBS, RANGES

MAX_CHOICES = 1024
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 256
# Routers accept 1,024 words and send up to two token sequences for each: the word with and without a leading space.
MAX_BAD_WORDS = 2048
MAX_BAD_WORD_TOKENS = 1 << 18
MAX_STRING_CHARS = 64 * 1024

_ID_BYTES = 4


def check_submit(submit: scheduler_pb2.Submit, model: model_pb2.ModelInfo, max_model_len: int) -> None:
    """Checks a Submit. Raises RefusedError with INVALID_ARGUMENT for the first wrong field; the message names it.
    `max_model_len`: number of tokens in the longest sequence that any worker group takes."""
    for name in ("request_id", "traceparent", "cache_salt", "tenant"):
        _check_length(name, len(getattr(submit, name)), MAX_STRING_CHARS, "characters")
    num_prompt_tokens = _check_ids("prompt_token_ids", submit.prompt_token_ids, max_model_len, model.vocab_size)
    if not num_prompt_tokens:
        raise invalid("prompt_token_ids", "the prompt is empty")
    if submit.HasField("pooling") or submit.HasField("classification"):
        _check_choices(submit, 1, num_prompt_tokens, 0, model.vocab_size)
        _check_pooling(submit.pooling, model)
        if submit.HasField("classification"):
            _check_classification(submit, num_prompt_tokens)
        return
    _check_stop(submit.stop, num_prompt_tokens, max_model_len, model.vocab_size)
    _check_choices(submit, MAX_CHOICES, num_prompt_tokens, submit.stop.max_tokens, model.vocab_size)
    _check_sampling(submit.sampling, model.vocab_size)
    if submit.HasField("constraints"):
        _check_constraints(submit.constraints, max_model_len, model.vocab_size)


def invalid(field: str, problem: str) -> RefusedError:
    return RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, f"Invalid '{field}': {problem}."))


def _check_choices(
    submit: scheduler_pb2.Submit, most: int, num_prompt_tokens: int, max_tokens: int, vocab_size: int
) -> None:
    choices = submit.choices
    if not 1 <= len(choices) <= most:
        raise invalid("choices", f"there are {len(choices)}; expected {'1' if most == 1 else f'1 to {most}'}")
    names: set[int] = set()
    for index, choice in enumerate(choices):
        path = f"choices[{index}]"
        if choice.sequence_id in names:
            raise invalid(f"{path}.sequence_id", f"{choice.sequence_id} is the id of another choice, too")
        names.add(choice.sequence_id)
        _check_most(f"{path}.choice_index", choice.choice_index, MAX_CHOICES - 1)
        _check_ids(f"{path}.output_token_ids", choice.output_token_ids, max_tokens, vocab_size)
        if choice.num_prompt_logprobs > num_prompt_tokens - 1:
            raise invalid(
                f"{path}.num_prompt_logprobs",
                f"expected at most {num_prompt_tokens - 1}, for a prompt of {num_prompt_tokens} tokens, but got "
                f"{choice.num_prompt_logprobs}",
            )


def _check_pooling(pooling: pooling_pb2.PoolingParams, model: model_pb2.ModelInfo) -> None:
    size = model.embedding.size
    if pooling.HasField("dimensions") and size and not 1 <= pooling.dimensions <= size:
        raise invalid("pooling.dimensions", f"expected 1 to {size}, but got {pooling.dimensions}")


def _check_classification(submit: scheduler_pb2.Submit, num_prompt_tokens: int) -> None:
    if submit.HasField("pooling"):
        raise invalid("classification", "it cannot be combined with 'pooling'")
    if submit.classification.second_text_at > num_prompt_tokens:
        given = submit.classification.second_text_at
        raise invalid("classification.second_text_at", f"expected at most {num_prompt_tokens}, but got {given}")


def _check_sampling(sampling: sampling_pb2.SamplingParams, vocab_size: int) -> None:
    for name, allowed in RANGES.items():
        if sampling.HasField(name) and (value := getattr(sampling, name)) not in allowed:  # type: ignore[arg-type]
            raise invalid(f"sampling.{name}", f"expected a number {allowed}, but got {value:g}")
    _check_count("sampling.logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIAS)
    for index, entry in enumerate(sampling.logit_bias):
        _check_vocabulary(f"sampling.logit_bias[{index}].token_id", (entry.token_id,), vocab_size)
        if entry.bias not in BIAS_RANGE:
            raise invalid(f"sampling.logit_bias[{index}].bias", f"expected {BIAS_RANGE}, but got {entry.bias:g}")
    given = sampling.logprob_token_ids
    _check_count("sampling.logprob_token_ids", len(given), MAX_LOGPROBS)
    _check_vocabulary("sampling.logprob_token_ids", given, vocab_size)
    if len(set(given)) < len(given):
        raise invalid("sampling.logprob_token_ids", "a token is listed twice")


def _check_stop(stop: sampling_pb2.StopConditions, num_prompt_tokens: int, max_model_len: int, vocab_size: int) -> None:
    if stop.max_tokens < 1:
        raise invalid("stop.max_tokens", "expected at least 1")
    if num_prompt_tokens + stop.max_tokens > max_model_len:
        raise invalid(
            "stop.max_tokens",
            f"{num_prompt_tokens} prompt tokens and {stop.max_tokens} output tokens exceed the context of "
            f"{max_model_len}",
        )
    _check_most("stop.min_tokens", stop.min_tokens, max_model_len)
    _check_count("stop.stop_token_ids", len(stop.stop_token_ids), MAX_STOP_TOKEN_IDS)
    _check_vocabulary("stop.stop_token_ids", stop.stop_token_ids, vocab_size)


def _check_constraints(constraints: constraints_pb2.TokenConstraints, max_model_len: int, vocab_size: int) -> None:
    _check_most("constraints.min_tokens", constraints.min_tokens, max_model_len)
    _check_length("constraints.grammar", len(constraints.grammar.encode()), MAX_GRAMMAR_BYTES, "bytes")
    for name in ("end_token_ids", "allowed_token_ids"):
        _check_ids(f"constraints.{name}", getattr(constraints, name), vocab_size, vocab_size)
    _check_bad_words(constraints, vocab_size)
    if constraints.HasField("thinking_budget"):
        for name in ("thinking_end_token_id", "thinking_begin_token_id"):
            _check_vocabulary(f"constraints.{name}", (getattr(constraints, name),), vocab_size)


def _check_bad_words(constraints: constraints_pb2.TokenConstraints, vocab_size: int) -> None:
    words, field = constraints.bad_word_token_ids, "constraints.bad_word_offsets"
    num_tokens = _check_ids("constraints.bad_word_token_ids", words, MAX_BAD_WORD_TOKENS, vocab_size)
    num_offsets = _check_column(field, constraints.bad_word_offsets, MAX_BAD_WORDS + 1)
    if not num_offsets:
        if num_tokens:
            raise invalid(field, f"the column is empty, but 'bad_word_token_ids' has {num_tokens} tokens")
        return
    offsets = u32(constraints.bad_word_offsets)
    if offsets[0] != 0 or offsets[-1] != num_tokens:
        raise invalid(field, f"the offsets go from {offsets[0]} to {offsets[-1]}; expected 0 to {num_tokens}")
    if any(start >= end for start, end in pairwise(offsets)):
        raise invalid(field, "each offset must be greater than the one before it")


def _check_ids(field: str, column: bytes, most: int, vocab_size: int) -> int:
    """Checks a column of token ids and returns their number."""
    num_ids = _check_column(field, column, most)
    _check_vocabulary(field, u32(column), vocab_size)
    return num_ids


def _check_column(field: str, column: bytes, most: int) -> int:
    """Checks the size of a column and returns the number of u32 in it."""
    if len(column) % _ID_BYTES:
        raise invalid(field, f"{len(column)} bytes are no whole number of u32")
    _check_count(field, len(column) // _ID_BYTES, most)
    return len(column) // _ID_BYTES


def _check_vocabulary(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise invalid(field, f"token id {largest} is out of range; the model has {vocab_size} tokens")


def _check_most(field: str, value: int, most: int) -> None:
    if value > most:
        raise invalid(field, f"expected at most {most}, but got {value}")


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise invalid(field, f"there are {count}; expected at most {most}")


def _check_length(field: str, length: int, most: int, unit: str) -> None:
    if length > most:
        raise invalid(field, f"it has {length} {unit}; expected at most {most}")
