"""A step: the plan that goes to a worker group, and the result that comes back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from services.scheduler.core.kv_memory import Moves
from services.scheduler.core.request import RequestT
from services.scheduler.core.sequence import Failure, Sequence

U32 = "I"  # array typecode of every column of ids and counts


@dataclass(frozen=True, slots=True)
class NewSequence(Generic[RequestT]):
    """A sequence that the worker does not know yet, or no longer knows after a preemption.

    All fields except `sequence` are a snapshot. `sequence` itself changes while the plan is in flight, so its tokens
    must be read before the next result is applied.
    """

    sequence: Sequence[RequestT]
    wire_id: int
    slot: int
    num_computed_tokens: int
    block_ids: list[int]
    prompt_logprobs_from: int | None  # prompt position of the first token whose log probability is wanted


@dataclass(slots=True)
class Rows:
    """The tokens to compute: a column per field, a row per sequence."""

    wire_ids: array[int] = field(default_factory=partial(array, U32))
    slots: array[int] = field(default_factory=partial(array, U32))
    num_scheduled_tokens: array[int] = field(default_factory=partial(array, U32))
    num_computed_tokens: array[int] = field(default_factory=partial(array, U32))
    # Row r appends new_block_ids[new_block_offsets[r]:new_block_offsets[r + 1]] to its block table.
    new_block_offsets: array[int] = field(default_factory=partial(array, U32, [0]))
    new_block_ids: array[int] = field(default_factory=partial(array, U32))

    def __len__(self) -> int:
        return len(self.wire_ids)


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[RequestT]):
    """The plan of one step. The worker applies it in this order: swap-out, release, swap-in, copies, new sequences,
    forward, sample.
    """

    step_id: int
    released_wire_ids: array[int]
    new_sequences: list[NewSequence[RequestT]]
    rows: Rows
    # Wire ids of the rows that compute the last of the tokens that their sequence has so far. Only these rows have a
    # result: a sampled token or a pooled vector. The worker must return a result or an error for each of them.
    sampling_wire_ids: array[int]
    num_pairs: float  # number of (token, position that it attends to) pairs, from which attention's time is estimated
    num_prompt_logprobs: int  # number of prompt tokens whose log probabilities the step computes, with the output layer
    moves: Moves[RequestT]
    preempted: Items[Sequence[RequestT]] = ()  # the sequences that were preempted since the last plan

    @property
    def num_tokens(self) -> int:
        return sum(self.rows.num_scheduled_tokens)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Tells for which prompt tokens of one sequence a step computed log probabilities. A subclass holds the values."""

    wire_id: int
    first_position: int  # in the prompt
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens that a step sampled, the vectors that it pooled, and the sequences that failed in the step."""

    step_id: int
    wire_ids: Items[int]
    token_ids: Items[int]
    errors: Items[tuple[int, Failure]] = ()  # (wire id, failure)
    seconds: float = 0.0  # duration of the step on the device; 0: unknown
    prompt_logprobs: Items[PromptLogprobs] = ()
    pooled: Items[tuple[int, bytes]] = ()  # (wire id, its vector)
    # (wire id, failure): sequences that can go on once their preparation has been made again, for each alone. The
    # failure tells the client why a sequence cannot, if that did not help before.
    outgrown: Items[tuple[int, Failure]] = ()

    def check(self, plan: StepPlan[RequestT]) -> None:
        """Raises ValueError unless the result belongs to `plan`, and has exactly one token, vector or error for each of
        the plan's `sampling_wire_ids`, or names it among `outgrown`.
        """
        if self.step_id != plan.step_id:
            raise ValueError(f"result of step {self.step_id} came, expected {plan.step_id}")
        if not (self.errors or self.pooled or self.outgrown) and self.wire_ids == plan.sampling_wire_ids:
            return
        without_result = {wire_id for wire_id, _ in (*self.errors, *self.outgrown)}
        expected = set(plan.sampling_wire_ids) - without_result
        brought = [*self.wire_ids, *(wire_id for wire_id, _ in self.pooled)]
        if len(brought) != len(expected) or expected.symmetric_difference(brought):
            raise ValueError(f"the result of step {self.step_id} lacks a token or vector, or has one too many")
