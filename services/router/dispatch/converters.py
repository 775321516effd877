"""Converts between the messages of quire.scheduler.v1 and the router's own types."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise, repeat
from typing import NamedTuple

from quire.inference.v1 import constraints_pb2, model_pb2, pooling_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.columns import column_of, ids_from_bytes, ids_to_bytes
from services.router.constraints import TokenConstraints
from services.router.dispatch.submission import Submission, SubmittedSequence
from services.router.dispatch.work import FinishReason, Generate, Pool
from services.router.errors import ApiError, kind_of_code
from services.router.load import SchedulerLoad
from services.router.logprobs import PromptLogprobs, TokenLogprobs
from services.router.model import ModelInfo
from services.router.parameters import (
    ClassificationParams,
    ClassifierInfo,
    EmbeddingInfo,
    PoolingParams,
    SamplingParams,
    StopConditions,
)

# Maximum number of output tokens in one Submit. They take 4 MB, well below the maximum size of a joined message
# (shared/message_parts.py).
_MAX_SUBMIT_OUTPUT_TOKENS = 1_000_000
# SamplingParams has the same field names in the router and in the proto.
_REPEATED_SAMPLING_FIELDS = ("logit_bias", "logprob_token_ids")
_OPTIONAL_SAMPLING_FIELDS = tuple(
    field.name for field in fields(SamplingParams) if field.name not in _REPEATED_SAMPLING_FIELDS
)
# Sent in place of a `top_p` of 0, which the worker refuses. This value is less than the probability of the most likely
# token in any vocabulary, so only that token is kept.
LEAST_TOP_P = 2.0**-30
# The fields of a load that are copied as they are.
_LOAD_FIELDS = {field.name for field in fields(SchedulerLoad)} - {"num_steps_by_tokens", "enable_prefix_caching"}
_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def sampling_from_proto(message: sampling_pb2.SamplingParams) -> SamplingParams:
    values = {name: getattr(message, name) for name in _OPTIONAL_SAMPLING_FIELDS if message.HasField(name)}  # type: ignore[arg-type]  # HasField takes literals
    bias = tuple((entry.token_id, entry.bias) for entry in message.logit_bias)
    return SamplingParams(**values, logit_bias=bias, logprob_token_ids=tuple(message.logprob_token_ids))


def sampling_to_proto(sampling: SamplingParams) -> sampling_pb2.SamplingParams:
    message = sampling_pb2.SamplingParams(logprob_token_ids=sampling.logprob_token_ids)
    if sampling.logit_bias:
        message.MergeFrom(_biases(sampling.logit_bias))
    for name in _OPTIONAL_SAMPLING_FIELDS:
        value = getattr(sampling, name)
        if value is not None:
            setattr(message, name, value)
    if sampling.top_p is not None:
        message.top_p = max(sampling.top_p, LEAST_TOP_P)
    return message


@lru_cache(maxsize=4)
def _biases(entries: tuple[tuple[int, float], ...]) -> sampling_pb2.SamplingParams:
    """Returns a message with only the logit biases. Callers must not change the message, because the function returns
    the same one for all Submits of a request. Each Submit gets a copy, which takes a tenth of the time that making the
    message takes."""
    return sampling_pb2.SamplingParams(
        logit_bias=[sampling_pb2.LogitBias(token_id=token_id, bias=bias) for token_id, bias in entries]
    )


def stop_from_proto(message: sampling_pb2.StopConditions) -> StopConditions:
    return StopConditions(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        min_tokens=message.min_tokens,
    )


def _stop_to_proto(stop: StopConditions) -> sampling_pb2.StopConditions:
    return sampling_pb2.StopConditions(
        max_tokens=stop.max_tokens,
        stop_token_ids=stop.stop_token_ids,
        ignore_eos=stop.ignore_eos,
        min_tokens=stop.min_tokens,
    )


def constraints_to_proto(constraints: TokenConstraints) -> constraints_pb2.TokenConstraints:
    thinking = constraints.thinking
    return constraints_pb2.TokenConstraints(
        grammar=constraints.grammar,
        min_tokens=constraints.min_tokens,
        end_token_ids=constraints.end_token_ids,
        allowed_token_ids=constraints.allowed_token_ids,
        bad_word_token_ids=constraints.bad_words.token_ids,
        bad_word_offsets=constraints.bad_words.offsets,
        thinking_budget=None if thinking is None else thinking.num_tokens,
        thinking_end_token_id=0 if thinking is None else thinking.end_token_id,
        thinking_begin_token_id=None if thinking is None else thinking.begin_token_id,
    )


def model_from_proto(message: model_pb2.ModelInfo) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        aliases=tuple(message.aliases),
        max_model_len=message.max_model_len,
        vocab_size=message.vocab_size,
        eos_token_ids=frozenset(message.eos_token_ids),
        default_sampling=sampling_from_proto(message.default_sampling),
        tokenizer_sha256=message.tokenizer_sha256,
        tokenizer_bytes=message.tokenizer_bytes,
        architecture=message.architecture,
        dtype=message.dtype,
        embedding=_embedding_from_proto(message) if message.HasField("embedding") else None,
        is_encoder=message.is_encoder,
        classifier=ClassifierInfo(tuple(message.classifier.labels)) if message.HasField("classifier") else None,
        has_no_output_layer=message.has_no_output_layer,
        version=message.version,
    )


def _embedding_from_proto(message: model_pb2.ModelInfo) -> EmbeddingInfo:
    sizes, prompts = message.embedding, message.embedding_prompts
    texts = {prompt.name: prompt.text for prompt in prompts.prompts}
    default = texts.get(prompts.default_name, "") if prompts.HasField("default_name") else ""
    return EmbeddingInfo(sizes.size, sizes.is_matryoshka, tuple(sizes.matryoshka_dimensions), texts, default)


def pooling_from_proto(message: pooling_pb2.PoolingParams) -> PoolingParams:
    return PoolingParams(
        message.dimensions if message.HasField("dimensions") else None,
        message.normalize if message.HasField("normalize") else None,
    )


def _pooling_to_proto(pooling: PoolingParams) -> pooling_pb2.PoolingParams:
    return pooling_pb2.PoolingParams(dimensions=pooling.dimensions, normalize=pooling.normalize)


def load_from_proto(message: scheduler_pb2.Load) -> SchedulerLoad:
    values = {name: getattr(message, name) for name in _LOAD_FIELDS}
    return SchedulerLoad(
        **values,
        num_steps_by_tokens=tuple(message.num_steps_by_tokens),
        enable_prefix_caching=message.enable_prefix_caching if message.HasField("enable_prefix_caching") else None,
    )


def submits_to_proto(
    submission: Submission, sequences: Sequence[SubmittedSequence], now: float
) -> Iterator[scheduler_pb2.ConnectRequest]:
    """Converts sequences of one submission to Submit messages. There are several messages if the sequences have too
    many output tokens for one. `now`: time in seconds, on the clock of the submission's deadline."""
    part: list[SubmittedSequence] = []
    num_tokens = 0
    for sequence in sequences:
        num_tokens += len(sequence.output_token_ids)
        if part and num_tokens > _MAX_SUBMIT_OUTPUT_TOKENS:
            yield _submit_to_proto(submission, part, now)
            part, num_tokens = [], len(sequence.output_token_ids)
        part.append(sequence)
    yield _submit_to_proto(submission, part, now)


def _submit_to_proto(
    submission: Submission, sequences: Sequence[SubmittedSequence], now: float
) -> scheduler_pb2.ConnectRequest:
    submit = scheduler_pb2.Submit(
        request_id=submission.request_id,
        prompt_token_ids=ids_to_bytes(submission.prompt_token_ids),
        choices=[
            scheduler_pb2.Choice(
                sequence_id=sequence.sequence_id,
                choice_index=sequence.choice_index,
                attempt=sequence.attempt,
                output_token_ids=ids_to_bytes(sequence.output_token_ids),
                num_prompt_logprobs=len(submission.prompt_logprobs),
                was_accepted=sequence.was_accepted or bool(sequence.output_token_ids),
                num_worker_losses=sequence.num_worker_losses,
            )
            for sequence in sequences
        ],
        traceparent=submission.traceparent,
        cache_salt=submission.cache_salt,
        priority=submission.priority,
        tenant=submission.tenant,
        turn_id=submission.mailbox.turn_id,
    )
    match submission.work:
        case Generate(sampling, stop, constraints):
            submit.sampling.CopyFrom(sampling_to_proto(sampling))
            submit.stop.CopyFrom(_stop_to_proto(stop))
            # If the client set no limit, `max_tokens` is the room left in the context, and `min_tokens` may exceed it.
            submit.stop.min_tokens = min(submit.stop.min_tokens, submit.stop.max_tokens)
            if constraints is not None:
                submit.constraints.CopyFrom(constraints_to_proto(constraints))
                submit.constraints.min_tokens = min(submit.constraints.min_tokens, submit.stop.max_tokens)
        case Pool(PoolingParams() as params):
            submit.pooling.CopyFrom(_pooling_to_proto(params))
            submit.sampling.SetInParent()
            submit.stop.max_tokens = 0
        case Pool(ClassificationParams(second_text_at, activates)):
            wanted = pooling_pb2.ClassificationParams(second_text_at=second_text_at, activates=activates)
            submit.classification.CopyFrom(wanted)
            submit.sampling.SetInParent()
            submit.stop.max_tokens = 0
    if submission.deadline is not None:
        submit.timeout_ms = max(1, int((submission.deadline - now) * 1000))
    return scheduler_pb2.ConnectRequest(submit=submit)


def abort_to_proto(sequence_ids: Sequence[int]) -> scheduler_pb2.ConnectRequest:
    return scheduler_pb2.ConnectRequest(abort=scheduler_pb2.Abort(sequence_ids=ids_to_bytes(sequence_ids)))


def _partition(offsets: Sequence[int], count: int) -> bool:
    """Returns whether the offsets ascend from 0 to `count`."""
    return offsets[0] == 0 and offsets[-1] == count and all(start <= end for start, end in pairwise(offsets))


class FrameRow(NamedTuple):
    sequence_id: int
    attempt: int
    first_output_index: int
    token_ids: list[int]
    # One entry per token, or none at all.
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class FrameFinish:
    sequence_id: int
    attempt: int
    # None if there is an error.
    reason: FinishReason | None
    error: ApiError | None
    # Whether the error is that two workers have exited while they computed the sequence alone.
    is_blamed: bool
    # Vector of a sequence with pooling, as little-endian float32; otherwise empty.
    embedding: bytes


def frame_rows(frame: scheduler_pb2.Frame) -> Iterator[FrameRow]:
    """Yields the rows of a frame. Raises ValueError if the frame's columns are inconsistent."""
    sequence_ids = ids_from_bytes(frame.sequence_ids)
    attempts = ids_from_bytes(frame.attempts)
    first_output_indices = ids_from_bytes(frame.first_output_indices)
    offsets = ids_from_bytes(frame.token_offsets)
    token_ids = ids_from_bytes(frame.token_ids)
    if not sequence_ids:
        return
    if not len(sequence_ids) == len(attempts) == len(first_output_indices) == len(offsets) - 1:
        raise ValueError("the columns of a frame have different lengths")
    if not _partition(offsets, len(token_ids)):
        raise ValueError("the offsets of a frame do not partition its tokens")
    logprobs = _LogprobRows(frame.logprobs, token_ids) if frame.logprobs.token_indices else None
    for row, sequence_id in enumerate(sequence_ids):
        start, end = offsets[row], offsets[row + 1]
        yield FrameRow(
            sequence_id,
            attempts[row],
            first_output_indices[row],
            token_ids[start:end],
            _NO_LOGPROBS if logprobs is None else logprobs.of(start, end),
        )


# All rows without log probabilities share this object, so it must not be changed.
_NO_LOGPROBS = TokenLogprobs()


class _LogprobRows:
    """Splits a frame's log probabilities into those of its rows, in the order of the frame's tokens."""

    def __init__(self, columns: sampling_pb2.TokenLogprobs, token_ids: Sequence[int]) -> None:
        """Raises ValueError if the columns are inconsistent."""
        self._token_ids = token_ids
        self._indices = column_of("I", columns.token_indices)
        self._own = column_of("f", columns.logprobs)
        self._counts = column_of("I", columns.top_counts)
        self._top_ids = column_of("I", columns.top_token_ids)
        self._top = column_of("f", columns.top_logprobs)
        num_top = sum(self._counts)
        if not len(self._indices) == len(self._own) == len(self._counts) or not (
            len(self._top_ids) == len(self._top) == num_top
        ):
            raise ValueError("the columns of a frame's logprobs have different lengths")
        if any(index >= following for index, following in pairwise(self._indices)):
            raise ValueError("a frame's logprobs are out of order")
        if self._indices and self._indices[-1] >= len(token_ids):
            raise ValueError("a frame's logprobs refer to a token that the frame does not contain")
        # Positions in the columns: the numbers of entries and candidates that earlier calls of `of` have returned.
        self._entry = self._candidate = 0

    def of(self, start: int, end: int) -> TokenLogprobs:
        """Returns the log probabilities of the frame's tokens from `start` to before `end`. Calls must be in the order
        of the tokens."""
        first = self._entry
        last = first
        while last < len(self._indices) and self._indices[last] < end:
            last += 1
        if first == last:
            return _NO_LOGPROBS
        counts = self._counts[first:last]
        top = slice(self._candidate, self._candidate + sum(counts))
        self._entry, self._candidate = last, top.stop
        taken = TokenLogprobs()
        heads = array("I", (self._token_ids[index] for index in self._indices[first:last]))
        taken.extend(heads, self._own[first:last], counts, self._top_ids[top], self._top[top])
        return taken


class PromptRow(NamedTuple):
    sequence_id: int
    attempt: int
    # Index of the row's first entry among all entries of the prompt. Entry 0 is for the prompt's second token.
    first_index: int
    entries: PromptLogprobs


def prompt_rows(frame: scheduler_pb2.Frame) -> Iterator[PromptRow]:
    """Yields the prompts' log probabilities in a frame. Raises ValueError if the frame's columns are inconsistent."""
    columns = frame.prompt_logprobs
    sequence_ids, firsts = ids_from_bytes(columns.sequence_ids), ids_from_bytes(columns.first_positions)
    attempts, counts = ids_from_bytes(frame.prompt_logprobs_attempts), ids_from_bytes(columns.top_counts)
    offsets = ids_from_bytes(columns.offsets)
    if not len(sequence_ids) == len(firsts) == len(attempts) == len(counts) == len(offsets) - 1:
        raise ValueError("the columns of a frame's prompt logprobs have different lengths")
    own, ranks = column_of("f", columns.logprobs), column_of("I", columns.ranks)
    top_ids, top = column_of("I", columns.top_token_ids), column_of("f", columns.top_logprobs)
    if not (len(own) == len(ranks) and _partition(offsets, len(own))):
        raise ValueError("the offsets of a frame's prompt logprobs do not partition them")
    num_top = sum(count * (offsets[row + 1] - offsets[row]) for row, count in enumerate(counts))
    if not (len(top_ids) == len(top) == num_top and min(firsts, default=1)):
        raise ValueError("the columns of a frame's prompt logprobs have different lengths")
    start = 0
    for row, count in enumerate(counts):
        num_entries = offsets[row + 1] - offsets[row]
        own_part, top_part = slice(offsets[row], offsets[row + 1]), slice(start, start + count * num_entries)
        start = top_part.stop
        entries = PromptLogprobs()
        entries.extend(ranks[own_part], own[own_part], repeat(count, num_entries), top_ids[top_part], top[top_part])
        yield PromptRow(sequence_ids[row], attempts[row], firsts[row] - 1, entries)


def finish_from_proto(finished: scheduler_pb2.Finished) -> FrameFinish:
    reason = _FINISH_REASONS.get(finished.reason)
    error = None
    if reason is None:
        retry_after = finished.error.retry_after_ms / 1000 or None
        message = finished.error.message or "The scheduler ended this request without an error message."
        param = finished.error.field or None
        error = ApiError(kind_of_code(finished.error.code), message, param, retry_after=retry_after)
    is_blamed = finished.error.is_blamed
    return FrameFinish(finished.sequence_id, finished.attempt, reason, error, is_blamed, finished.embedding)
