"""Converts between protobuf messages and the core's types. A message's columns are arrays of numbers, sent as
little-endian bytes. An array in memory has the same bytes, so columns are copied, not parsed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from quire.inference.v1 import model_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.core import U32, ErrorKind, Failure, FinishReason, PromptLogprobs, StepPlan, StepResult
from services.scheduler.worker_request import WorkerRequestT

if sys.byteorder != "little":
    raise ImportError("columns of messages are little-endian, but this machine is big-endian")

# google.rpc.Code
CODES: Final = {
    ErrorKind.INVALID_ARGUMENT: 3,
    ErrorKind.DEADLINE_EXCEEDED: 4,
    ErrorKind.RESOURCE_EXHAUSTED: 8,
    ErrorKind.INTERNAL: 13,
    ErrorKind.UNAVAILABLE: 14,
}
FINISH_REASONS: Final = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
    FinishReason.ERROR: sampling_pb2.FINISH_REASON_ERROR,
}


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """The first message of a worker group to the scheduler that claimed it: its model, limits and measured times."""

    boot_id: int
    epoch: int
    model: model_pb2.ModelInfo  # the scheduler reads limits and end tokens, and passes the rest on to routers
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int
    swap_seconds_per_block: float
    step_seconds: float
    step_seconds_per_token: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probabilities of one sampled token and its likeliest alternatives. The fields hold the bytes of the proto
    message TokenLogprobs: u32 token ids and f32 log probabilities."""

    logprob: bytes
    top_token_ids: bytes
    top_logprobs: bytes


@dataclass(frozen=True, slots=True)
class PromptLogprobColumns(PromptLogprobs):
    """Log probabilities of one sequence's prompt tokens. The columns hold the bytes of the proto message: u32 token ids
    and ranks, f32 log probabilities. Each token has `top_count` entries in the top columns and one in the others.
    """

    top_count: int
    logprobs: bytes
    ranks: bytes
    top_token_ids: bytes
    top_logprobs: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.logprobs) + len(self.ranks) + len(self.top_token_ids) + len(self.top_logprobs)


@dataclass(frozen=True, slots=True)
class WorkerResult(StepResult):
    """A step's result, as the core reads it, and in addition the values of the prompt log probabilities. The core only
    reads for which tokens there are values."""

    prompt_logprobs: Items[PromptLogprobColumns] = ()


def u32(column: bytes) -> array[int]:
    """Converts a column's bytes to u32 numbers. Raises ValueError if the number of bytes is no multiple of 4."""
    values = array(U32)
    values.frombytes(column)
    return values


def hello_from_proto(hello: worker_pb2.Hello) -> WorkerHello:
    return WorkerHello(
        hello.boot_id,
        hello.epoch,
        hello.model,
        hello.num_blocks,
        hello.block_size,
        hello.max_num_seqs,
        hello.max_num_batched_tokens,
        hello.num_host_blocks,
        hello.swap_seconds_per_block,
        hello.step_seconds,
        hello.step_seconds_per_token,
    )


def plan_to_proto(plan: StepPlan[WorkerRequestT], epoch: int, late_after_s: float = 0.0) -> worker_pb2.StepPlan:
    """`late_after_s`: seconds without a result after which the worker is given up; 0: not known."""
    rows = plan.rows
    message = worker_pb2.StepPlan(
        epoch=epoch,
        step_id=plan.step_id,
        released_wire_ids=plan.released_wire_ids.tobytes(),
        rows=worker_pb2.Rows(
            wire_ids=rows.wire_ids.tobytes(),
            slots=rows.slots.tobytes(),
            num_scheduled_tokens=rows.num_scheduled_tokens.tobytes(),
            num_computed_tokens=rows.num_computed_tokens.tobytes(),
            new_block_offsets=rows.new_block_offsets.tobytes(),
            new_block_ids=rows.new_block_ids.tobytes(),
        ),
        late_after_s=late_after_s,
    )
    moves = plan.moves
    if moves.swap_out:
        message.swap_out_blocks, message.swap_out_slots = _columns(moves.swap_out)
    if moves.swap_in:
        message.swap_in_slots, message.swap_in_blocks = _columns(moves.swap_in)
    if moves.copies:
        message.copy_sources, message.copy_destinations = _columns(moves.copies)
    for new in plan.new_sequences:
        request, needs = new.sequence.request, new.sequence.needs
        message.new_sequences.add(
            wire_id=new.wire_id,
            slot=new.slot,
            token_ids=new.sequence.token_ids.tobytes(),
            num_prompt_tokens=new.sequence.num_prompt_tokens,
            num_computed_tokens=new.num_computed_tokens,
            block_ids=array(U32, new.block_ids).tobytes(),
            sampling=request.sampling,
            choice_index=request.choice_index,
            traceparent=request.traceparent,
            request_id=request.request_id,
            constraints=request.constraints,
            prompt_logprobs_from=new.prompt_logprobs_from,
            own_grammar_key=needs.key if needs is not None and needs.is_single else b"",
            pooling=request.pooling,
            classification=request.classification,
        )
    return message


def _columns(pairs: list[tuple[int, int]]) -> tuple[bytes, bytes]:
    first, second = zip(*pairs, strict=True)
    return array(U32, first).tobytes(), array(U32, second).tobytes()


def result_from_proto(result: worker_pb2.StepResult) -> WorkerResult:
    wire_ids = u32(result.wire_ids)
    token_ids = u32(result.token_ids)
    if len(wire_ids) != len(token_ids):
        raise ValueError(
            f"the result of step {result.step_id} has {len(wire_ids)} sequence ids, but {len(token_ids)} tokens"
        )
    errors = [(error.wire_id, _failure(error)) for error in result.errors if not error.needs_own_grammar]
    outgrown = [(error.wire_id, _failure(error)) for error in result.errors if error.needs_own_grammar]
    of_prompts = list(_split_prompt_logprobs(result.prompt_logprobs))
    pooled = [(sequence.wire_id, sequence.embedding) for sequence in result.pooled]
    seconds = result.timings.run_us / 1e6
    return WorkerResult(result.step_id, wire_ids, token_ids, errors, seconds, of_prompts, pooled, outgrown)


def _failure(error: worker_pb2.SequenceError) -> Failure:
    kind = ErrorKind.INVALID_ARGUMENT if error.is_request_at_fault else ErrorKind.INTERNAL
    return Failure(kind, error.message)


def logprobs_from_proto(logprobs: sampling_pb2.TokenLogprobs) -> dict[int, TokenLogprob]:
    """Returns each sampled token's log probabilities, by the token's index in the message that contains `logprobs`.
    Raises ValueError if the columns' lengths do not match.
    """
    counts = u32(logprobs.top_counts)
    num_tokens, num_top = len(u32(logprobs.token_indices)), sum(counts)
    lengths = (len(counts), len(logprobs.logprobs) / 4, len(logprobs.top_token_ids) / 4, len(logprobs.top_logprobs) / 4)
    if lengths != (num_tokens, num_tokens, num_top, num_top):
        raise ValueError("the columns of the log probabilities have different lengths")
    return dict(_split_logprobs(logprobs))


def _split_logprobs(logprobs: sampling_pb2.TokenLogprobs) -> Iterator[tuple[int, TokenLogprob]]:
    start = 0
    counts = u32(logprobs.top_counts)
    for row, index in enumerate(u32(logprobs.token_indices)):
        end = start + 4 * counts[row]
        yield (
            index,
            TokenLogprob(
                logprobs.logprobs[4 * row : 4 * row + 4],
                logprobs.top_token_ids[start:end],
                logprobs.top_logprobs[start:end],
            ),
        )
        start = end


def _split_prompt_logprobs(columns: sampling_pb2.PromptLogprobs) -> Iterator[PromptLogprobColumns]:
    """Yields the columns of each sequence. Raises ValueError or IndexError if the columns' lengths do not match."""
    offsets, counts = u32(columns.offsets), u32(columns.top_counts)
    firsts, top = u32(columns.first_positions), 0
    for index, wire_id in enumerate(u32(columns.sequence_ids)):
        num_tokens = offsets[index + 1] - offsets[index]
        own, top_end = slice(4 * offsets[index], 4 * offsets[index + 1]), top + 4 * num_tokens * counts[index]
        entries = PromptLogprobColumns(
            wire_id,
            firsts[index],
            num_tokens,
            counts[index],
            columns.logprobs[own],
            columns.ranks[own],
            columns.top_token_ids[top:top_end],
            columns.top_logprobs[top:top_end],
        )
        if num_tokens < 1 or entries.num_bytes != 8 * num_tokens * (1 + counts[index]):
            raise ValueError("the columns of the prompts' log probabilities have different lengths")
        yield entries
        top = top_end


def error_to_proto(failure: Failure) -> scheduler_pb2.Error:
    retry_after_ms = 0 if failure.retry_after_s is None else round(failure.retry_after_s * 1000)
    return scheduler_pb2.Error(
        code=CODES[failure.kind],
        message=failure.message,
        retry_after_ms=retry_after_ms,
        field=failure.field,
        is_blamed=failure.is_blamed,
    )
