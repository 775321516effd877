"""Builds the next step from decodes, chunks of partly computed prompts, and sequences that start.

Adding a row counts the row's tokens as computed, and gives the row's sequence the blocks for these tokens. The builder
also collects which rows will sample, and the numbers from which the step's duration is estimated.
"""

from __future__ import annotations

from array import array
from typing import Generic

from services.scheduler.core.budget import StepBudget
from services.scheduler.core.kv_memory import KVMemory
from services.scheduler.core.pacing import pairs
from services.scheduler.core.plan import U32, NewSequence, Rows
from services.scheduler.core.preemption import Preemption
from services.scheduler.core.request import RequestT
from services.scheduler.core.sequence import Sequence, Status


class StepBuilder(Generic[RequestT]):
    """Collects the rows of one step. Each step has a builder of its own."""

    __slots__ = (
        "_block_size",
        "_memory",
        "new_sequences",
        "num_pairs",
        "num_prompt_logprobs",
        "rows",
        "sampling_wire_ids",
    )

    def __init__(self, block_size: int, memory: KVMemory[RequestT]) -> None:
        self.rows = Rows()
        self.new_sequences: list[NewSequence[RequestT]] = []
        self.sampling_wire_ids: array[int] = array(U32)  # wire ids of the rows that will sample
        self.num_pairs = 0.0
        self.num_prompt_logprobs = 0
        self._block_size = block_size
        self._memory = memory

    def add_decodes(
        self, running: list[Sequence[RequestT]], preemption: Preemption[RequestT]
    ) -> list[Sequence[RequestT]]:
        """Adds a row for every sequence with one token left to compute. Returns the sequences with more than one.

        The loop must be fast, because it runs for every running sequence in every step. So it does the work of
        `_add_row` itself, for rows of one token, without function calls for most rows.
        """
        prefills: list[Sequence[RequestT]] = []
        rows, memory, block_size = self.rows, self._memory, self._block_size
        last_slot = block_size - 1
        new_block_ids, offsets = rows.new_block_ids, rows.new_block_offsets
        add_wire_id, add_slot, add_position = rows.wire_ids.append, rows.slots.append, rows.num_computed_tokens.append
        # During the loop, preemption removes sequences from the end of `running`. Removed sequences have no row yet.
        for sequence in running:
            num_tokens = sequence.num_planned_tokens
            if num_tokens >= sequence.max_num_tokens:
                continue
            position = sequence.num_computed_tokens
            if num_tokens - position > 1:
                prefills.append(sequence)
                continue
            slot = position % block_size
            if slot == 0:
                if not preemption.make_room(sequence):
                    continue
                offsets.extend([len(new_block_ids)] * (len(rows) + 1 - len(offsets)))
                new_block_ids.extend(memory.extend(sequence, 1))
            elif slot == last_slot:
                memory.extend(sequence, 1)
            else:
                sequence.num_computed_tokens = position + 1
            sequence.num_planned_tokens = num_tokens + 1
            add_wire_id(sequence.wire_id)
            add_slot(sequence.slot)
            add_position(position)
        num_rows = len(rows)
        offsets.extend([len(new_block_ids)] * (num_rows + 1 - len(offsets)))
        rows.num_scheduled_tokens.extend([1] * num_rows)
        self.sampling_wire_ids.extend(rows.wire_ids)
        self.num_pairs += sum(rows.num_computed_tokens) + num_rows
        return [sequence for sequence in prefills if sequence.status is Status.RUNNING]

    def add_prefills(self, prefills: list[Sequence[RequestT]], budget: StepBudget) -> None:
        """Adds chunks of partly computed prompts, in order. Never preempts a sequence for a chunk. Admission made sure
        that enough blocks were free for the whole prompt. If decodes have taken these blocks since, the prompt waits.
        """
        for sequence in prefills:
            room = min(budget.max_chunk(sequence), self._memory.num_slots_free(sequence))
            chunk = min(sequence.num_uncomputed_tokens, room)
            if chunk > 0:
                budget.take(sequence, chunk)
                self._add_row(sequence, chunk)

    def add_new(self, sequence: Sequence[RequestT], num_tokens: int) -> None:
        """Adds a row for a sequence that starts. Because the worker does not know the sequence, the plan has a
        NewSequence with all its blocks."""
        num_computed_tokens = sequence.num_computed_tokens
        self._add_row(sequence, num_tokens, is_new=True)
        self.new_sequences.append(
            NewSequence(
                sequence,
                sequence.wire_id,
                sequence.slot,
                num_computed_tokens,
                sequence.block_ids.copy(),
                sequence.num_prompt_logprobs + 1 if sequence.wants_prompt_logprobs else None,
            )
        )

    def _add_row(self, sequence: Sequence[RequestT], num_tokens: int, is_new: bool = False) -> None:
        """Adds a row for the next `num_tokens` tokens of a running sequence."""
        rows, position = self.rows, sequence.num_computed_tokens
        new_blocks = self._memory.extend(sequence, num_tokens)
        rows.wire_ids.append(sequence.wire_id)
        rows.slots.append(sequence.slot)
        rows.num_scheduled_tokens.append(num_tokens)
        rows.num_computed_tokens.append(position)
        if not is_new:
            rows.new_block_ids.extend(new_blocks)
        rows.new_block_offsets.append(len(rows.new_block_ids))
        self.num_pairs += pairs(position, num_tokens)
        if sequence.wants_prompt_logprobs:
            self.num_prompt_logprobs += num_tokens
        if sequence.num_computed_tokens == sequence.num_planned_tokens:
            sequence.num_planned_tokens += 1
            self.sampling_wire_ids.append(sequence.wire_id)
