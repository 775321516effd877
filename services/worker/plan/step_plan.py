"""One step as the worker's core sees it: what to do, and what came of it. On the wire: `worker.proto`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.token_constraints import TokenConstraints
from services.worker.pooling import PoolingParams

U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]


def _no_ids() -> U32:
    return np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True)
class NewSequence:
    wire_id: int
    slot: int
    token_ids: U32  # the prompt, then the output so far
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: U32
    sampling: SamplingParams
    choice_index: int
    traceparent: str = ""
    constraints: TokenConstraints | None = None
    # Position of the first prompt token whose log probability is wanted; None: none is.
    prompt_logprobs_from: int | None = None
    pooling: PoolingParams | None = None  # its one result is a vector; nothing is sampled


@dataclass(frozen=True, slots=True)
class Rows:
    """The batch, a column per field."""

    wire_ids: U32  # [num_rows]
    slots: U32  # [num_rows]
    num_scheduled_tokens: U32  # [num_rows]
    num_computed_tokens: U32  # [num_rows]
    new_block_offsets: U32  # [num_rows + 1]
    new_block_ids: U32  # [new_block_offsets[-1]]

    def __len__(self) -> int:
        return len(self.wire_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    epoch: int
    step_id: int
    released_wire_ids: U32
    new_sequences: tuple[NewSequence, ...]
    rows: Rows
    copy_sources: U32 = field(default_factory=_no_ids)  # [num_copies], block ids
    copy_destinations: U32 = field(default_factory=_no_ids)  # [num_copies]
    swap_out_blocks: U32 = field(default_factory=_no_ids)  # [n]
    swap_out_slots: U32 = field(default_factory=_no_ids)  # [n], of the host
    swap_in_slots: U32 = field(default_factory=_no_ids)  # [m]
    swap_in_blocks: U32 = field(default_factory=_no_ids)  # [m]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities under the raw distribution, of those tokens of a result whose sequences asked for them."""

    token_indices: U32  # [n], ascending
    logprobs: F32  # [n]
    top_counts: U32  # [n]
    top_token_ids: U32  # [sum of top_counts], likeliest first
    top_logprobs: F32  # [sum of top_counts]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities under the raw distribution, of prompt tokens of n sequences."""

    wire_ids: U32  # [n]
    first_positions: U32  # [n], in the prompt
    offsets: U32  # [n + 1], into the entries
    logprobs: F32  # [offsets[n]]
    ranks: U32  # [offsets[n]], from 1
    top_counts: U32  # [n], of each of a sequence's entries
    top_token_ids: U32  # entry by entry, likeliest first
    top_logprobs: F32


@dataclass(frozen=True, slots=True)
class SequenceError:
    """Why one sequence fails, and no other with it."""

    wire_id: int
    message: str  # a sentence for the client
    # Whether it is the request itself that cannot be met, here or anywhere.
    is_request_at_fault: bool = False


@dataclass(frozen=True, slots=True)
class PooledSequence:
    wire_id: int
    embedding: F32


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Of one step, in seconds of the device's own clock."""

    idle: float  # before the step, since the one collected before it; 0 for the first of an epoch
    busy: float  # from its first kernel until its results were copied


@dataclass(frozen=True, slots=True)
class StepResult:
    step_id: int
    wire_ids: U32  # [n], the rows that sampled, in the plan's order
    token_ids: U32  # [n]
    logprobs: Logprobs | None
    errors: tuple[SequenceError, ...]
    num_scheduled_tokens: int
    queue_us: int
    run_us: int
    prompt_logprobs: PromptLogprobs | None = None
    pooled: tuple[PooledSequence, ...] = ()
    device: DeviceTime | None = None  # None: the device was not timed
