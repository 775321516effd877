"""Continuous batching over one worker group: which tokens each step computes, and in which blocks.

There are no phases. Every sequence has tokens known or promised and tokens computed, and must catch up; a chunk of
prefill, a decode and a resumed preemption are the same thing (iteration-level scheduling: Yu et al., Orca, OSDI 2022,
section 3; paged blocks: Kwon et al., vLLM, SOSP 2023, section 4).

Several plans may be in flight. A plan may schedule tokens that an earlier one still has to sample ("promised"); it
never goes past `max_tokens`, so only an end token, a stop string or an abort leaves results that nobody wants, and
those are dropped.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import insort
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from .config import CoreConfig, PreemptionMode
from .kv_memory import KVMemory, num_computed
from .pacing import StepTimes, pairs
from .plan import U32, NewSequence, Rows, StepPlan, StepResult
from .prefix_cache import Prefix
from .sequence import ErrorKind, Failure, FinishReason, Sequence, SequenceRequest, Status
from .waiting import FairQueue, RankedQueue

# Sequences found in one step to need what others are computing; more are left for the next one.
_MAX_SET_ASIDE = 64
# Losses of a worker in a row, without a new token, after which a sequence runs alone until it brings one; and after
# which it fails. So a sequence that kills its workers is found, and those beside it go on.
_LOSSES_BEFORE_ALONE = 2
_LOSSES_BEFORE_FAILURE = 3


class RefusedError(Exception):
    """A request that cannot be taken. `failure` says why, for the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class NewToken(NamedTuple):
    sequence: Sequence
    output_index: int
    token_id: int
    result_index: int  # its place in the StepResult's columns


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    sequence: Sequence
    reason: FinishReason
    failure: Failure | None = None


@dataclass(slots=True)
class StepOutcome:
    """What a step's result means for the owners of its sequences."""

    tokens: list[NewToken] = field(default_factory=list)
    finished: list[FinishedSequence] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    starts: int = 0  # of sequences that had waited for their first turn
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    aborts: int = 0
    # Tokens of starting sequences, and those of them whose blocks were found in the cache.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


class Scheduler:
    """Owns the queues and every sequence; `memory` says where their keys and values are. Not thread-safe."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.memory = KVMemory(config)
        self.counters = Counters()
        self.step_times = StepTimes()
        self._sequences: dict[Hashable, Sequence] = {}
        self._running: list[Sequence] = []  # by rank
        self._waiting: RankedQueue | FairQueue = FairQueue() if config.fair_queueing else RankedQueue()
        # Those that wait for another sequence to compute what they need, by the last prefix of it.
        self._set_aside: dict[Prefix, dict[int, Sequence]] = {}
        self._num_set_aside = 0
        self._num_waiting_tokens = 0  # outstanding ones of all that wait
        self._by_wire_id: dict[int, Sequence] = {}
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        # What the worker must forget; told with the next plan.
        self._released: array[int] = array(U32)
        # Rows of the plan being made that will sample.
        self._sampling: array[int] = array(U32)
        self._num_pairs = 0.0
        self._in_flight: deque[StepPlan] = deque()
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._next_arrival = 0
        self._next_wire_id = 1
        self._next_step_id = 1

    # -- Requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: SequenceRequest) -> Sequence:
        """Queues a sequence. Raises RefusedError if it can never run, or the queue is full."""
        self._check_request(request)
        if self.num_waiting >= self.config.max_num_queued_reqs:
            message = f"{self.num_waiting} requests are waiting already"
            raise RefusedError(Failure(ErrorKind.RESOURCE_EXHAUSTED, message, 1.0))
        self.counters.prompt_tokens += len(request.prompt_token_ids)
        return self._enqueue(request)

    def adopt(self, drained: Sequence) -> None:
        """Queues a sequence that another scheduler's `drain` returned, however long the queue is: it was accepted once.
        Raises RefusedError if it can never run here."""
        output = drained.token_ids[drained.num_prompt_tokens :]
        request = replace(drained.request, output_token_ids=output)
        self._check_request(request)
        self._enqueue(request).num_losses = drained.num_losses

    def abort(self, key: Hashable) -> bool:
        """Ends a sequence without a word to its owner; its blocks are free at once. False if there is no such
        sequence.
        """
        sequence = self._sequences.get(key)
        if sequence is None:
            return False
        self.counters.aborts += 1
        self._remove(sequence)
        return True

    def expire(self, now: float) -> list[FinishedSequence]:
        """Ends the sequences whose deadline is past."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.status is Status.FINISHED:
                continue
            self._remove(sequence)
            where = "generating" if sequence.num_output_tokens else "waiting for its turn"
            failure = Failure(ErrorKind.DEADLINE_EXCEEDED, f"the request's time ran out while {where}")
            expired.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        return expired

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do that results in flight do not have to come first for."""
        rows = Rows()
        new_sequences: list[NewSequence] = []
        num_preemptions = self.counters.preemptions
        # Decodes first, so that no prompt, however long, takes their place in the step.
        prefills = self._schedule_decodes(rows)
        budget = self.config.max_num_batched_tokens - len(rows)
        seconds = self._seconds_beside_decodes(rows)
        budget, seconds = self._schedule_prefills(rows, prefills, budget, seconds)
        if self.counters.preemptions == num_preemptions:
            self._admit(rows, new_sequences, prefills, budget, seconds)
        if not rows and not self._in_flight and self._running:
            # Prompts that are half computed hold all the blocks. The latest gives way; the rest can go on.
            self._preempt(self._running[-1])
            return self.schedule()
        if not rows and not self._released and not self.memory.must_move:
            return None
        plan = StepPlan(
            step_id=self._next_step_id,
            released_wire_ids=self._released,
            new_sequences=new_sequences,
            rows=rows,
            sampling_wire_ids=self._sampling,
            num_pairs=self._num_pairs,
            moves=self.memory.take_moves(),
        )
        self.counters.swapped_out_blocks += len(plan.moves.swap_out)
        self.counters.swapped_in_blocks += len(plan.moves.swap_in)
        self._num_pairs = 0.0
        self._sampling = array(U32)
        self._next_step_id += 1
        self._released = array(U32)
        self._in_flight.append(plan)
        self.counters.steps += 1
        return plan

    def apply(self, result: StepResult) -> StepOutcome:
        """Takes the result of the oldest step in flight. Tokens of sequences that have ended or were preempted are
        dropped.

        Raises ValueError if it is another step's, or not what the step was to bring.
        """
        if not self._in_flight:
            raise ValueError(f"result of step {result.step_id} came, expected none")
        plan = self._in_flight[0]
        result.check(plan)
        self._in_flight.popleft()
        self.memory.applied(plan.moves)
        if result.seconds:
            self.step_times.observe(plan.num_tokens, plan.num_pairs, result.seconds)
        outcome = StepOutcome()
        for wire_id, message in result.errors:
            sequence = self._by_wire_id.get(wire_id)
            if sequence is not None:
                self.memory.distrust(sequence)
                self._remove(sequence)
                failure = Failure(ErrorKind.INTERNAL, message)
                outcome.finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        # Before tokens: the last one ends a sequence, and its blocks go back to the pool.
        for sequence, wire_id, num_blocks in plan.moves.filled:
            if sequence.wire_id == wire_id:
                for prefix in self.memory.publish(sequence, num_blocks):
                    self._wake(prefix)
        self._append_tokens(result, outcome)
        return outcome

    def reset(self) -> list[FinishedSequence]:
        """The worker group is gone, or another one took its place: pages, slots and steps in flight with it. Every
        sequence waits to be planned anew, from its prompt and the output known so far. Returns those that were lost
        with their workers too often.
        """
        in_flight = {wire_id for plan in self._in_flight for wire_id in plan.rows.wire_ids}
        finished = []
        for sequence in reversed(self._running.copy()):
            sequence.num_losses += sequence.wire_id in in_flight
            if sequence.num_losses < _LOSSES_BEFORE_FAILURE:
                self._requeue(sequence)
                continue
            self._remove(sequence)
            message = f"{sequence.num_losses} workers in a row were lost while they computed this request"
            failure = Failure(ErrorKind.INTERNAL, message)
            finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        self.memory.lose(self._sequences.values(), [plan.moves for plan in self._in_flight])
        self._in_flight.clear()
        self._released = array(U32)
        self._next_step_id = 1
        self._next_wire_id = 1
        return finished

    def drain(self) -> list[Sequence]:
        """Removes and returns every sequence, in the order of arrival, for another group's scheduler to take."""
        sequences = sorted(self._sequences.values(), key=attrgetter("arrival"))
        for sequence in sequences:
            self._remove(sequence)
        return sequences

    # -- State, for load reports and tests -----------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + self._num_set_aside

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_outstanding_tokens(self) -> int:
        return self._num_waiting_tokens + sum(sequence.num_outstanding_tokens for sequence in self._running)

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        in_flight = [plan.moves for plan in self._in_flight]
        self.memory.check_integrity(self._running, self._sequences.values(), in_flight)
        assert sorted([*self._free_slots, *(s.slot for s in self._running)]) == list(range(self.config.max_num_seqs))
        assert list(self._by_wire_id.values()) == sorted(self._running, key=attrgetter("wire_id"))
        assert self._running == sorted(self._running), "running out of order"
        assert len(self._sequences) == self.num_running + self.num_waiting
        outstanding = sum(sequence.num_outstanding_tokens for sequence in self._sequences.values())
        assert self.num_outstanding_tokens == outstanding
        for sequence in self._running:
            assert sequence.status is Status.RUNNING
            assert sequence.num_output_tokens + sequence.num_promised_tokens <= sequence.request.max_tokens
        set_aside = [s for sequences in self._set_aside.values() for s in sequences.values()]
        assert len(set_aside) == self._num_set_aside
        for prefix, sequences in self._set_aside.items():
            assert sequences
            assert prefix.owner in self._running, "a sequence waits for what nobody computes"
            assert all(s.waits_for is prefix for s in sequences.values())
        for sequence in [*self._waiting, *set_aside]:
            assert sequence.status is Status.WAITING
            assert not sequence.prefixes
            assert not sequence.block_ids
            assert sequence.wire_id == 0

    # -- Parts of a step -----------------------------------------------------------------------------------------------

    def _schedule_decodes(self, rows: Rows) -> list[Sequence]:
        """A row for every sequence with one token left to compute. Returns the sequences that have more than one.

        The hot loop of a step: what `_add_row` does, for rows of one token, without its calls.
        """
        prefills: list[Sequence] = []
        running, memory, block_size = self._running, self.memory, self.config.block_size
        new_block_ids = rows.new_block_ids
        add_wire_id, add_slot, add_offset = rows.wire_ids.append, rows.slots.append, rows.new_block_offsets.append
        add_num_scheduled, add_num_computed = rows.num_scheduled_tokens.append, rows.num_computed_tokens.append
        num_pairs = index = 0
        # Not a plain loop: preemption takes sequences off the end, none of which has a row yet.
        while index < len(running):
            sequence = running[index]
            index += 1
            num_tokens = len(sequence.token_ids) + sequence.num_promised_tokens
            if num_tokens - sequence.num_prompt_tokens >= sequence.request.max_tokens:
                continue
            position = sequence.num_computed_tokens
            if num_tokens - position > 1:
                prefills.append(sequence)
                continue
            if position % block_size == 0:
                if not self._make_room(sequence):
                    continue
                new_block_ids.extend(memory.extend(sequence, 1))
            elif (position + 1) % block_size == 0:
                memory.extend(sequence, 1)
            else:
                sequence.num_computed_tokens = position + 1
            add_wire_id(sequence.wire_id)
            add_slot(sequence.slot)
            add_num_scheduled(1)
            add_num_computed(position)
            add_offset(len(new_block_ids))
            num_pairs += position + 1
            sequence.num_promised_tokens += 1
        self._sampling.extend(rows.wire_ids)
        self._num_pairs += num_pairs
        return [sequence for sequence in prefills if sequence.status is Status.RUNNING]

    def _make_room(self, sequence: Sequence) -> bool:
        """Sees to it that a block is free if the next token of `sequence` needs one: the latest arrivals give theirs
        up. False if that was the sequence itself.
        """
        while self.memory.num_blocks_short(sequence, 1) > self.memory.pool.num_free:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _seconds_beside_decodes(self, rows: Rows) -> float:
        """How long prompts may make this step: none of those that decode is to wait longer than the target for its
        next token, or than twice as long as it would without prompts.
        """
        target = self.config.target_tbt_s
        if target is None or not rows or not self.step_times.is_known:
            return math.inf
        decodes = self.step_times.seconds(len(rows), self._num_pairs)
        return max(target - decodes, decodes)

    def _schedule_prefills(
        self, rows: Rows, prefills: list[Sequence], budget: int, seconds: float
    ) -> tuple[int, float]:
        """Chunks of the prompts under way, in order. They take no one's blocks: `_admit` has seen to it that all of
        them fit, and where decodes have grown into that room since, they wait. Returns the tokens and seconds left.
        """
        for sequence in prefills:
            room = min(budget, self._max_chunk(sequence, seconds))
            chunk = min(sequence.num_uncomputed_tokens, room, self.memory.num_slots_free(sequence))
            if chunk > 0:
                seconds -= self._chunk_seconds(sequence, chunk)
                self._add_row(rows, sequence, chunk)
                budget -= chunk
        return budget, seconds

    def _max_chunk(self, sequence: Sequence, seconds: float) -> int:
        """A token at least while there is any time, so that no prompt is held up for good."""
        if seconds == math.inf:
            return self.config.max_num_batched_tokens
        return max(1, self.step_times.max_chunk(sequence.num_computed_tokens, seconds)) if seconds > 0 else 0

    def _chunk_seconds(self, sequence: Sequence, num_tokens: int) -> float:
        if not self.step_times.is_known:
            return 0.0
        return self.step_times.chunk_seconds(sequence.num_computed_tokens, num_tokens)

    def _admit(
        self,
        rows: Rows,
        new_sequences: list[NewSequence],
        prefills: list[Sequence],
        budget: int,
        seconds: float,
    ) -> None:
        """Starts waiting sequences, in order, while there is room in the step, a slot, and blocks for the whole
        prompt beside what the `prefills` under way still need.
        """
        if not self._waiting:
            return
        memory = self.memory
        reserved = sum(memory.num_blocks_short(s, s.num_uncomputed_tokens) for s in prefills)
        new_bytes = 0
        num_set_aside = self._num_set_aside
        while budget > 0 and self._waiting and self._free_slots and not self._is_alone():
            sequence = self._waiting.first()
            if sequence.num_losses >= _LOSSES_BEFORE_ALONE and self._running:
                return
            found = self._find_prefixes(sequence)
            owned = next((prefix for prefix in reversed(found) if prefix.owner is not None), None)
            if owned is not None:
                self._set_aside_for(owned, sequence)
                if self._num_set_aside - num_set_aside >= _MAX_SET_ASIDE:
                    return
                continue
            if reserved + memory.num_blocks_needed(sequence, found) > memory.pool.num_free:
                return
            new_bytes += sequence.num_bytes
            if new_sequences and new_bytes > self.config.max_new_sequence_bytes:
                return
            if self._max_chunk(sequence, seconds) < 1:
                return
            self._waiting.remove(sequence)
            self._start(sequence, found)
            num_left = len(sequence.token_ids) - sequence.num_computed_tokens
            chunk = min(num_left, budget, self._max_chunk(sequence, seconds))
            seconds -= self._chunk_seconds(sequence, chunk)
            budget -= chunk
            self._add_row(rows, sequence, chunk, new_sequences)
            reserved += memory.num_blocks_short(sequence, num_left - chunk)

    def _is_alone(self) -> bool:
        """Whether the running sequence is one that nobody may run beside."""
        return bool(self._running) and self._running[0].num_losses >= _LOSSES_BEFORE_ALONE

    def _find_prefixes(self, sequence: Sequence) -> list[Prefix]:
        """What is known of the sequence's tokens but for the last, which must be computed for what follows it."""
        found = self.memory.find(sequence)
        if not self.config.num_host_blocks:
            return found
        num_here = num_computed(found)
        num_on_host = sum(prefix.owner is None for prefix in found[num_here:])
        if sequence.host_slots or not self._is_worth_loading(num_here, num_on_host):
            # What is not here, it brings along itself, or computes sooner than it could be brought.
            del found[num_here:]
        return found

    def _is_worth_loading(self, num_blocks_here: int, num_blocks: int) -> bool:
        position, num_tokens = num_blocks_here * self.config.block_size, num_blocks * self.config.block_size
        if not num_blocks or not self.step_times.is_known:
            return True
        seconds = num_blocks * self.config.seconds_per_swapped_block
        return seconds <= self.step_times.chunk_seconds(position, num_tokens)

    def _start(self, sequence: Sequence, found: list[Prefix]) -> None:
        """Gives a sequence its slot, and the blocks of the prefixes found for it."""
        sequence.status = Status.RUNNING
        self._num_waiting_tokens -= sequence.num_outstanding_tokens
        sequence.num_tokens_at_start = len(sequence.token_ids)
        sequence.slot = self._free_slots.pop()
        sequence.wire_id = self._next_wire_id
        self._next_wire_id += 1
        self._by_wire_id[sequence.wire_id] = sequence
        insort(self._running, sequence)
        self.memory.enter(sequence, found)
        self._waiting.serve(sequence, len(sequence.token_ids) - sequence.num_computed_tokens)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self.counters.starts += 1
            self.counters.prefix_cache_queries += len(sequence.token_ids)
            self.counters.prefix_cache_hits += sequence.num_cached_tokens

    def _set_aside_for(self, prefix: Prefix, sequence: Sequence) -> None:
        """The sequence waits, out of the others' way, until the prefix is computed or given up."""
        self._waiting.remove(sequence)
        sequence.waits_for = prefix
        self._set_aside.setdefault(prefix, {})[sequence.arrival] = sequence
        self._num_set_aside += 1

    def _wake(self, prefix: Prefix) -> None:
        for sequence in self._set_aside.pop(prefix, {}).values():
            sequence.waits_for = None
            self._num_set_aside -= 1
            self._waiting.push(sequence)

    def _add_row(
        self, rows: Rows, sequence: Sequence, num_tokens: int, new_sequences: list[NewSequence] | None = None
    ) -> None:
        """Plans the next `num_tokens` of a running sequence and gives it the blocks they need."""
        num_computed_tokens = sequence.num_computed_tokens
        new_blocks = self.memory.extend(sequence, num_tokens)
        rows.wire_ids.append(sequence.wire_id)
        rows.slots.append(sequence.slot)
        rows.num_scheduled_tokens.append(num_tokens)
        rows.num_computed_tokens.append(num_computed_tokens)
        if new_sequences is None:
            rows.new_block_ids.extend(new_blocks)
        else:
            new_sequences.append(
                NewSequence(sequence, sequence.wire_id, sequence.slot, num_computed_tokens, sequence.block_ids.copy())
            )
        rows.new_block_offsets.append(len(rows.new_block_ids))
        self._num_pairs += pairs(num_computed_tokens, num_tokens)
        if sequence.num_computed_tokens == len(sequence.token_ids) + sequence.num_promised_tokens:
            sequence.num_promised_tokens += 1
            self._sampling.append(sequence.wire_id)

    # -- Changes of status ---------------------------------------------------------------------------------------------

    def _append_tokens(self, result: StepResult, outcome: StepOutcome) -> None:
        """The tokens sampled, and which are their sequences' last. As hot as planning decodes."""
        by_wire_id, tokens = self._by_wire_id, outcome.tokens
        for index, (wire_id, token_id) in enumerate(zip(result.wire_ids, result.token_ids, strict=True)):
            sequence = by_wire_id.get(wire_id)
            if sequence is None:
                continue
            token_ids, request = sequence.token_ids, sequence.request
            output_index = len(token_ids) - sequence.num_prompt_tokens
            token_ids.append(token_id)
            sequence.num_promised_tokens -= 1
            sequence.num_losses = 0
            tokens.append(NewToken(sequence, output_index, token_id, index))
            if token_id in request.stop_token_ids:
                reason = FinishReason.STOP
            elif output_index + 1 >= request.max_tokens:
                reason = FinishReason.LENGTH
            else:
                continue
            self._remove(sequence)
            outcome.finished.append(FinishedSequence(sequence, reason))
        self.counters.generation_tokens += len(tokens)
        if self.config.fair_queueing:
            for token in tokens:
                self._waiting.serve(token.sequence, 1)

    def _preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's blocks and slot; it waits to be recomputed, or brought back from the host. Its
        results in flight will be dropped, since it gets another wire id.
        """
        self.counters.preemptions += 1
        self._swap_out_if_better(sequence)
        self._requeue(sequence)

    def _swap_out_if_better(self, sequence: Sequence) -> None:
        """Has a sequence's blocks copied to the host, where there is room and that takes less time than to compute them
        again.
        """
        num_tokens = self.memory.num_tokens_to_save(sequence)
        num_blocks = -(-num_tokens // self.config.block_size)
        mode = self.config.preemption_mode
        if mode is PreemptionMode.RECOMPUTE or not 0 < num_blocks <= self.memory.host.num_free:
            return
        if mode is PreemptionMode.AUTO and self.step_times.is_known:
            seconds = 2 * num_blocks * self.config.seconds_per_swapped_block
            if seconds > self.step_times.chunk_seconds(0, num_tokens):
                return
        self.memory.swap_out(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.WAITING
        self._num_waiting_tokens += sequence.num_outstanding_tokens
        self._waiting.push(sequence)

    def _enqueue(self, request: SequenceRequest) -> Sequence:
        sequence = Sequence(request, self._next_arrival)
        self._next_arrival += 1
        self._sequences[request.key] = sequence
        self._num_waiting_tokens += sequence.num_outstanding_tokens
        self._waiting.push(sequence)
        if request.deadline is not None:
            self._add_deadline(request.deadline, sequence)
        return sequence

    def _remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request.key]
        self.memory.leave_host(sequence)
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
            self._release(sequence)
            sequence.status = Status.FINISHED
            return
        self._num_waiting_tokens -= sequence.num_outstanding_tokens
        if sequence.waits_for is not None:
            others = self._set_aside[sequence.waits_for]
            del others[sequence.arrival]
            self._num_set_aside -= 1
            if not others:
                del self._set_aside[sequence.waits_for]
        else:
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def _release(self, sequence: Sequence) -> None:
        """Gives back blocks and slot, and has the worker told."""
        del self._by_wire_id[sequence.wire_id]
        self._released.append(sequence.wire_id)
        self._free_slots.append(sequence.slot)
        for prefix in self.memory.leave(sequence):
            self._wake(prefix)
        sequence.slot = -1
        sequence.wire_id = 0
        sequence.num_promised_tokens = 0

    def _add_deadline(self, deadline: float, sequence: Sequence) -> None:
        heapq.heappush(self._deadlines, (deadline, sequence.arrival, sequence))
        if len(self._deadlines) > 2 * len(self._sequences) + 64:
            # Most belong to sequences that ended long before their time; keep memory in proportion to those alive.
            self._deadlines = [entry for entry in self._deadlines if entry[2].status is not Status.FINISHED]
            heapq.heapify(self._deadlines)

    def _check_request(self, request: SequenceRequest) -> None:
        limit = self.config.max_model_len
        if not request.prompt_token_ids:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "the prompt is empty"))
        if len(request.prompt_token_ids) + request.max_tokens > limit:
            raise RefusedError(
                Failure(
                    ErrorKind.INVALID_ARGUMENT,
                    f"{len(request.prompt_token_ids)} prompt tokens and {request.max_tokens} output tokens exceed the "
                    f"context of {limit}",
                )
            )
        if len(request.output_token_ids) >= request.max_tokens:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "nothing is left to generate"))
        if request.key in self._sequences:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "a sequence of this name is under way already"))
