"""The worker's state of each sequence slot, and how a plan changes it.

All of this state lies on the host, and a plan changes it without waiting for the device: a sampled token adds one to
its sequence's length, whichever token it is. So the next plan can be checked and laid out while the device still runs
the current plan. The sampled tokens stay on the device (`step/model_runner.py`). The sampler has its own state per
slot: sampling parameters and penalty counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.worker.errors import PlanError
from services.worker.plan.given_embeddings import GivenEmbeddings, join
from services.worker.plan.step_plan import NewSequence, Rows, SequenceError, StepPlan

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the worker announces in its Hello message."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    num_host_blocks: int = 0
    # False for an encoder: it pools each sequence in one step and has no KV blocks. Nevertheless, its `num_blocks` is
    # `max_num_seqs` and its `block_size` is `max_model_len`, as if each slot had one block for a whole sequence.
    has_kv_cache: bool = True

    @property
    def max_blocks_per_sequence(self) -> int:
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The m prompt tokens of a step that are followed, in their prompt, by a token that needs a log probability (the
    successor). They are grouped by their n sequences."""

    wire_ids: I64  # [n]
    first_positions: I64  # [n], prompt position of the first successor
    offsets: I64  # [n + 1], into the columns below
    top_counts: I64  # [n], number of likeliest tokens to report with each successor
    tokens: I64  # [m], indices into the step's tokens
    following: I64  # [m], token ids of the successors

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """The layout of one forward pass: the rows of the plan except those of failed sequences."""

    wire_ids: I64  # [num_rows]
    slots: I64  # [num_rows]
    token_ids: I64  # [num_tokens], 0 where the device inserts the slot's last token
    last_token_at: I64  # [n], indices into token_ids where the device inserts a last token
    last_token_slots: I64  # [n], the slots whose last tokens the device inserts
    positions: I32  # [num_tokens]
    query_starts: I32  # [num_rows + 1]
    num_blocks: I64  # [num_rows], entries in each row's block table
    sampled_rows: I64  # [m], rows that reach their sequence's last token, except pooled ones
    sampled_tokens: I64  # [m], index in token_ids of each sampled row's last token
    sampled_positions: I32  # [m], position of the token to be sampled
    ends: NDArray[np.bool_]  # [num_rows], whether the row reaches its sequence's last token
    pooled_rows: I64  # [k], rows whose sequences are pooled; none of them samples
    second_text_at: I64  # [num_rows], see `NewSequence.second_text_at`
    prompt: PromptTokens | None  # None: no sequence asks for log probabilities of prompt tokens
    failed: tuple[SequenceError, ...]  # one per row that was left out
    embeddings: GivenEmbeddings | None  # None: all tokens have the embeddings of their ids

    @property
    def tokens_with_logits(self) -> I64:
        """Indices into token_ids of the tokens that need logits: `sampled_tokens`, then `prompt.tokens`."""
        return self.sampled_tokens if self.prompt is None else np.concatenate((self.sampled_tokens, self.prompt.tokens))


class BatchState:
    """State of all slots, one array per field. Its methods raise PlanError for a plan that contradicts the state. After
    an error, the object must not be used any more."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        slots = limits.max_num_seqs
        self._slot_of: dict[int, int] = {}
        self._wire_id = np.full(slots, -1, np.int64)  # -1: free
        self._num_tokens = np.zeros(slots, np.int64)  # known tokens plus sampled tokens
        self._num_known = np.zeros(slots, np.int64)  # tokens whose ids the host knows: those in NewSequence
        self._num_computed = np.zeros(slots, np.int64)
        self._num_blocks = np.zeros(slots, np.int64)
        self._is_pooled = np.zeros(slots, bool)
        self._second_text_at = np.zeros(slots, np.int64)
        self.block_tables: I32 = np.zeros((slots, limits.max_blocks_per_sequence), np.int32)
        self._known: list[I64 | None] = [None] * slots
        self._embeddings: dict[int, GivenEmbeddings] = {}  # by slot
        # Range of prompt positions whose log probabilities are wanted (start, end), and the number of likeliest tokens
        # to report with each.
        self._prompt_logprobs = np.zeros((slots, 2), np.int64)
        self._prompt_top_count = np.zeros(slots, np.int64)
        self._admission = np.zeros(slots, np.int64)  # order of admission: smaller is older
        self._num_admitted = 0
        self._failed: dict[int, SequenceError] = {}  # by wire id, until released

    def __len__(self) -> int:
        return len(self._slot_of)

    def release(self, plan: StepPlan) -> list[int]:
        """Frees the slots of the plan's released sequences and returns the slots."""
        slots = []
        for wire_id in plan.released_wire_ids.tolist():
            slot = self._slot_of.pop(wire_id, None)
            if slot is None:
                raise PlanError(f"the plan releases sequence {wire_id}, which holds no slot")
            self._wire_id[slot] = -1
            self._known[slot] = None
            self._embeddings.pop(slot, None)
            self._failed.pop(wire_id, None)
            slots.append(slot)
        return slots

    def check_copies(self, plan: StepPlan) -> None:
        """Raises PlanError if a copy names a block or slot that does not exist, or two copies have one destination."""
        blocks, slots = self.limits.num_blocks, self.limits.num_host_blocks
        for sources, num_sources, destinations, num_destinations in (
            (plan.swap_out_blocks, blocks, plan.swap_out_slots, slots),
            (plan.swap_in_slots, slots, plan.swap_in_blocks, blocks),
            (plan.copy_sources, blocks, plan.copy_destinations, blocks),
        ):
            if len(sources) != len(destinations):
                raise PlanError("the copies' columns differ in length")
            if len(sources) and (sources.max() >= num_sources or destinations.max() >= num_destinations):
                raise PlanError(f"a copy is out of range: blocks must be below {blocks}, host slots below {slots}")
            if len(np.unique(destinations)) != len(destinations):
                raise PlanError("two copies have the same destination")

    def admit(self, sequence: NewSequence) -> bool:
        """Stores a new sequence in its slot and returns whether it will run. A sequence with sampling parameters out of
        range fails alone, without a PlanError: the client sent the values, and other sequences must not suffer."""
        self._check_new(sequence)
        slot, num_tokens, num_blocks = sequence.slot, len(sequence.token_ids), len(sequence.block_ids)
        self._slot_of[sequence.wire_id] = slot
        self._wire_id[slot] = sequence.wire_id
        self._num_tokens[slot] = self._num_known[slot] = num_tokens
        self._num_computed[slot] = sequence.num_computed_tokens
        self._num_blocks[slot] = num_blocks
        self.block_tables[slot, :num_blocks] = sequence.block_ids
        self._known[slot] = sequence.token_ids.astype(np.int64)
        if sequence.embeddings is not None:
            self._embeddings[slot] = sequence.embeddings
        self._admit_prompt_logprobs(sequence)
        self._admission[slot] = self._num_admitted
        self._num_admitted += 1
        self._is_pooled[slot] = sequence.is_pooled
        self._second_text_at[slot] = sequence.second_text_at
        problem = sequence.check(self.limits.vocab_size)
        if problem is not None:
            self.fail(SequenceError(sequence.wire_id, problem, is_request_at_fault=True))
        return problem is None

    def fail(self, error: SequenceError) -> None:
        """Marks the sequence `error.wire_id` as failed: leaves its rows out of all later steps, and reports `error`
        instead. Does nothing if the sequence has been released."""
        if error.wire_id in self._slot_of:
            self._failed[error.wire_id] = error

    def schedule(self, rows: Rows) -> Batch:
        """Returns the layout of the rows' forward pass. Also appends the rows' new blocks to the block tables, and
        counts the scheduled tokens as computed."""
        slots = rows.slots.astype(np.int64)
        scheduled = rows.num_scheduled_tokens.astype(np.int64)
        self._check_rows(rows, slots, scheduled)
        self._append_blocks(rows, slots, scheduled)
        start = self._num_computed[slots]
        self._num_computed[slots] = start + scheduled
        ends = start + scheduled == self._num_tokens[slots]
        num_known = self._num_known[slots]
        self._num_tokens[slots[ends & ~self._is_pooled[slots]]] += 1
        failed: tuple[SequenceError, ...] = ()
        if self._failed:
            alive = np.array([wire_id not in self._failed for wire_id in rows.wire_ids.tolist()], bool)
            gone = rows.wire_ids[~alive].tolist()
            failed = tuple(self._failed[wire_id] for wire_id in gone)
            slots, scheduled, start, ends, num_known = (
                column[alive] for column in (slots, scheduled, start, ends, num_known)
            )
        return self._lay_out(slots, scheduled, start, ends, num_known, failed)

    def leave_out_newest(self, batch: Batch, reason: str) -> Batch:
        """Fails the most recently admitted sequence of the batch with `reason`. Returns the batch without that
        sequence's row."""
        newest = int(self._admission[batch.slots].argmax())
        error = SequenceError(int(batch.wire_ids[newest]), reason)
        self.fail(error)
        kept = np.arange(len(batch.slots)) != newest
        slots = batch.slots[kept]
        return self._lay_out(
            slots,
            np.diff(batch.query_starts)[kept].astype(np.int64),
            batch.positions[batch.query_starts[:-1]][kept].astype(np.int64),
            batch.ends[kept],
            self._num_known[slots],
            (*batch.failed, error),
        )

    def _lay_out(
        self, slots: I64, scheduled: I64, start: I64, ends: NDArray[np.bool_], num_known: I64,
        failed: tuple[SequenceError, ...],
    ) -> Batch:  # fmt: skip
        query_starts = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(scheduled, out=query_starts[1:])
        first = query_starts[:-1]
        positions = np.arange(query_starts[-1]) + np.repeat(start - first, scheduled)
        token_ids = np.zeros(len(positions), np.int64)
        # A row that starts after the known tokens holds exactly one token: the last sampled one.
        decodes = start >= num_known
        for row in np.flatnonzero(~decodes).tolist():
            known = self._known[slots[row]]
            assert known is not None
            token_ids[first[row] : query_starts[row + 1]] = known[start[row] : start[row] + scheduled[row]]
        is_pooled = self._is_pooled[slots]
        sampled_rows = np.flatnonzero(ends & ~is_pooled)
        return Batch(
            wire_ids=self._wire_id[slots],
            slots=slots,
            token_ids=token_ids,
            last_token_at=first[decodes],
            last_token_slots=slots[decodes],
            positions=positions.astype(np.int32),
            query_starts=query_starts.astype(np.int32),
            num_blocks=self._num_blocks[slots],
            sampled_rows=sampled_rows,
            sampled_tokens=query_starts[1:][sampled_rows] - 1,
            sampled_positions=(start + scheduled)[sampled_rows].astype(np.int32),
            ends=ends,
            pooled_rows=np.flatnonzero(is_pooled),
            second_text_at=self._second_text_at[slots],
            prompt=self._prompt_tokens(slots, scheduled, start, first),
            failed=failed,
            embeddings=self._embeddings_of(slots, scheduled, start, first) if self._embeddings else None,
        )

    def _embeddings_of(self, slots: I64, scheduled: I64, start: I64, first: I64) -> GivenEmbeddings | None:
        """Returns the given embeddings of a step's tokens; None if there are none. `first`: index of each row's first
        token among the step's tokens; `start`: its position in the sequence."""
        rows = zip(slots.tolist(), start.tolist(), scheduled.tolist(), first.tolist(), strict=True)
        return join(self._embeddings[slot].chunk(*where) for slot, *where in rows if slot in self._embeddings)

    def _admit_prompt_logprobs(self, sequence: NewSequence) -> None:
        positions, top_count = sequence.prompt_logprobs
        self._prompt_logprobs[sequence.slot] = (positions.start, positions.stop)
        self._prompt_top_count[sequence.slot] = min(top_count, self.limits.vocab_size)

    def _prompt_tokens(self, slots: I64, scheduled: I64, start: I64, first: I64) -> PromptTokens | None:
        """Returns the prompt tokens whose successor's log probability is wanted; None if there are none. `first`: index
        of each row's first token among the step's tokens; `start`: its position in the sequence."""
        begin = np.maximum(start + 1, self._prompt_logprobs[slots, 0])
        counts = np.minimum(start + scheduled + 1, self._prompt_logprobs[slots, 1]) - begin
        rows = np.flatnonzero(counts > 0)
        if not len(rows):
            return None
        ranges = [(int(begin[row]), int(begin[row] + counts[row])) for row in rows]
        following = []
        for row, (low, high) in zip(rows, ranges, strict=True):
            known = self._known[slots[row]]
            assert known is not None
            following.append(known[low:high])
        tokens = [
            np.arange(low, high) - 1 - start[row] + first[row] for row, (low, high) in zip(rows, ranges, strict=True)
        ]
        return PromptTokens(
            wire_ids=self._wire_id[slots[rows]],
            first_positions=begin[rows],
            offsets=np.concatenate(([0], np.cumsum(counts[rows]))),
            top_counts=self._prompt_top_count[slots[rows]],
            tokens=np.concatenate(tokens),
            following=np.concatenate(following),
        )

    def _append_blocks(self, rows: Rows, slots: I64, scheduled: I64) -> None:
        offsets = rows.new_block_offsets.astype(np.int64)
        counts = np.diff(offsets)
        for row in np.flatnonzero(counts).tolist():
            slot, have = slots[row], self._num_blocks[slots[row]]
            self.block_tables[slot, have : have + counts[row]] = rows.new_block_ids[offsets[row] : offsets[row + 1]]
        self._num_blocks[slots] += counts
        needed = self._num_computed[slots] + scheduled
        _require_all(self._num_blocks[slots] * self.limits.block_size >= needed, rows, "has fewer blocks than tokens")

    def _check_new(self, sequence: NewSequence) -> None:
        limits, num_tokens, given = self.limits, len(sequence.token_ids), sequence.embeddings
        occupied = sequence.slot < limits.max_num_seqs and self._wire_id[sequence.slot] >= 0
        rules = (
            (sequence.wire_id not in self._slot_of, "exists already"),
            (sequence.slot < limits.max_num_seqs, f"has slot {sequence.slot} of {limits.max_num_seqs}"),
            (not occupied, f"has slot {sequence.slot}, which another sequence holds"),
            (1 <= sequence.num_prompt_tokens <= num_tokens <= limits.max_model_len, f"has {num_tokens} tokens"),
            (sequence.num_computed_tokens < num_tokens, "has nothing left to compute"),
            *sequence.rules(),
            (limits.has_kv_cache or sequence.is_pooled, "asks to generate, but the model is an encoder"),
            (
                limits.has_kv_cache or not sequence.num_computed_tokens,
                "has computed tokens, but the model is an encoder",
            ),
            (len(sequence.block_ids) <= limits.max_blocks_per_sequence, "has more blocks than the longest sequence"),
            (
                len(sequence.block_ids) * limits.block_size >= sequence.num_computed_tokens,
                "lacks blocks for computed tokens",
            ),
            (bool((sequence.block_ids < limits.num_blocks).all()), "has a block id out of range"),
            (bool((sequence.token_ids < limits.vocab_size).all()), "has a token id out of range"),
            (given is None or limits.has_kv_cache, "brings embeddings, but the model is an encoder"),
            (given is None or given.fit(num_tokens), "brings embeddings that do not fit its tokens"),
        )
        for valid, reason in rules:
            if not valid:
                raise PlanError(f"new sequence {sequence.wire_id} {reason}")

    def _check_rows(self, rows: Rows, slots: I64, scheduled: I64) -> None:
        limits, offsets = self.limits, rows.new_block_offsets
        columns = (rows.slots, rows.num_scheduled_tokens, rows.num_computed_tokens, offsets[1:])
        if any(len(column) != len(rows) for column in columns) or len(offsets) != len(rows) + 1:
            raise PlanError("the rows' columns differ in length")
        if offsets[0] != 0 or offsets[-1] != len(rows.new_block_ids) or (offsets[1:] < offsets[:-1]).any():
            raise PlanError("new_block_offsets do not partition new_block_ids")
        if (rows.new_block_ids >= limits.num_blocks).any():
            raise PlanError(f"a new block id is not below {limits.num_blocks}")
        if scheduled.sum() > limits.max_num_batched_tokens:
            raise PlanError(
                f"{scheduled.sum()} tokens are scheduled; a step takes at most {limits.max_num_batched_tokens}"
            )
        _require_all(slots < limits.max_num_seqs, rows, "has a slot out of range")
        if len(np.unique(slots)) != len(slots):
            raise PlanError("two rows have the same slot")
        _require_all(self._wire_id[slots] == rows.wire_ids, rows, "is not in the planned slot")
        _require_all(self._num_computed[slots] == rows.num_computed_tokens, rows, "is not at the planned position")
        _require_all(scheduled >= 1, rows, "has no tokens scheduled")
        end = self._num_computed[slots] + scheduled
        _require_all(end <= self._num_tokens[slots], rows, "has fewer tokens than are scheduled")
        _require_all(end <= limits.max_model_len, rows, "exceeds the longest sequence")
        is_whole = end == self._num_tokens[slots]
        _require_all(is_whole | limits.has_kv_cache, rows, "is not whole, as an encoder requires")
        fits = self._num_blocks[slots] + np.diff(offsets.astype(np.int64)) <= limits.max_blocks_per_sequence
        _require_all(fits, rows, "has more blocks than the longest sequence")


def _require_all(valid: NDArray[np.bool_], rows: Rows, problem: str) -> None:
    if not valid.all():
        raise PlanError(f"sequence {rows.wire_ids[np.argmin(valid)]} {problem}")
