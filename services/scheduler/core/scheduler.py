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
from array import array
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from operator import attrgetter

from .block_pool import BlockPool
from .config import CoreConfig
from .plan import U32, NewSequence, Rows, StepPlan, StepResult
from .sequence import ErrorKind, Failure, FinishReason, Sequence, SequenceRequest, Status

_BY_ARRIVAL = attrgetter("arrival")
# Losses of a worker in a row, without a new token, after which a sequence runs alone until it brings one; and after
# which it fails. So a sequence that kills its workers is found, and those beside it go on.
_LOSSES_BEFORE_ALONE = 2
_LOSSES_BEFORE_FAILURE = 3


class RefusedError(Exception):
    """A request that cannot be taken. `failure` says why, for the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class NewToken:
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
    aborts: int = 0


class Scheduler:
    """Owns the queues, the block pool and every sequence's block table. Not thread-safe."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.counters = Counters()
        self._sequences: dict[Hashable, Sequence] = {}
        # Both ordered by arrival. A preempted sequence goes back to the front of the queue, where it belongs: whoever
        # runs arrived before it, and whoever waits after.
        self._running: list[Sequence] = []
        self._waiting: OrderedDict[Hashable, Sequence] = OrderedDict()
        self._by_wire_id: dict[int, Sequence] = {}
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        # What the worker must forget; told with the next plan.
        self._released: array[int] = array(U32)
        # Rows of the plan being made that will sample.
        self._sampling: array[int] = array(U32)
        self._in_flight: deque[StepPlan] = deque()
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._next_arrival = 0
        self._next_wire_id = 1
        self._next_step_id = 1

    # -- Requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: SequenceRequest) -> Sequence:
        """Queues a sequence. Raises RefusedError if it can never run, or the queue is full."""
        self._check_request(request)
        if len(self._waiting) >= self.config.max_num_queued_reqs:
            message = f"{len(self._waiting)} requests are waiting already"
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
        budget -= self._schedule_prefills(rows, prefills, budget)
        if self.counters.preemptions == num_preemptions:
            self._admit(rows, new_sequences, prefills, budget)
        if not rows and not self._in_flight and self._running:
            # Prompts that are half computed hold all the blocks. The latest gives way; the rest can go on.
            self._preempt(self._running[-1])
            return self.schedule()
        if not rows and not self._released:
            return None
        plan = StepPlan(self._next_step_id, self._released, new_sequences, rows, self._sampling)
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
        result.check(self._in_flight[0])
        self._in_flight.popleft()
        outcome = StepOutcome()
        for index, wire_id in enumerate(result.wire_ids):
            sequence = self._by_wire_id.get(wire_id)
            if sequence is not None:
                self._append(sequence, result.token_ids[index], index, outcome)
        for wire_id, message in result.errors:
            sequence = self._by_wire_id.get(wire_id)
            if sequence is not None:
                self._remove(sequence)
                failure = Failure(ErrorKind.INTERNAL, message)
                outcome.finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        return outcome

    def reset(self) -> list[FinishedSequence]:
        """The worker group is gone, or another one took its place: pages, slots and steps in flight with it. Every
        sequence waits to be planned anew, from its prompt and the output known so far. Returns those that were lost
        with their workers too often.
        """
        in_flight = {wire_id for plan in self._in_flight for wire_id in plan.rows.wire_ids}
        self._in_flight.clear()
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
        self._released = array(U32)
        self._next_step_id = 1
        self._next_wire_id = 1
        return finished

    def drain(self) -> list[Sequence]:
        """Removes and returns every sequence, in the order of arrival, for another group's scheduler to take."""
        sequences = sorted(self._sequences.values(), key=_BY_ARRIVAL)
        for sequence in sequences:
            self._remove(sequence)
        return sequences

    # -- State, for load reports and tests -----------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def num_outstanding_tokens(self) -> int:
        return sum(sequence.num_outstanding_tokens for sequence in self._sequences.values())

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        self.pool.check_integrity(block for sequence in self._running for block in sequence.block_ids)
        assert sorted([*self._free_slots, *(s.slot for s in self._running)]) == list(range(self.config.max_num_seqs))
        assert list(self._by_wire_id.values()) == sorted(self._running, key=attrgetter("wire_id"))
        arrivals = [s.arrival for s in self._running]
        assert arrivals == sorted(arrivals), "running out of order"
        arrivals = [s.arrival for s in self._waiting.values()]
        assert arrivals == sorted(arrivals), "waiting out of order"
        assert len(self._sequences) == len(self._running) + len(self._waiting)
        for sequence in self._running:
            assert sequence.status is Status.RUNNING
            blocks = -(-sequence.num_computed_tokens // self.config.block_size)
            assert len(sequence.block_ids) == blocks, "blocks held are not those its planned tokens need"
            assert sequence.num_output_tokens + sequence.num_promised_tokens <= sequence.request.max_tokens
        for sequence in self._waiting.values():
            assert sequence.status is Status.WAITING
            assert not sequence.block_ids
            assert sequence.wire_id == 0

    # -- Parts of a step -----------------------------------------------------------------------------------------------

    def _schedule_decodes(self, rows: Rows) -> list[Sequence]:
        """A row for every sequence with one token left to compute. Returns the sequences that have more than one."""
        prefills: list[Sequence] = []
        index = 0
        # Not a plain loop: preemption takes sequences off the end, none of which has a row yet.
        while index < len(self._running):
            sequence = self._running[index]
            index += 1
            uncomputed = sequence.num_uncomputed_tokens
            if uncomputed > 1:
                prefills.append(sequence)
            elif uncomputed == 1 and self._make_room(sequence):
                self._add_row(rows, sequence, 1)
        return [sequence for sequence in prefills if sequence.status is Status.RUNNING]

    def _make_room(self, sequence: Sequence) -> bool:
        """Sees to it that a block is free if the next token of `sequence` needs one: the latest arrivals give theirs
        up. False if that was the sequence itself.
        """
        while self._num_blocks_short(sequence, 1) > self.pool.num_free:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _schedule_prefills(self, rows: Rows, prefills: list[Sequence], budget: int) -> int:
        """Chunks of the prompts under way, in the order of arrival. They take no one's blocks: `_admit` has seen to
        it that all of them fit, and where decodes have grown into that room since, they wait. Returns the tokens
        scheduled.
        """
        scheduled = 0
        for sequence in prefills:
            chunk = min(sequence.num_uncomputed_tokens, budget - scheduled, self._num_slots_free(sequence))
            if chunk > 0:
                self._add_row(rows, sequence, chunk)
                scheduled += chunk
        return scheduled

    def _admit(self, rows: Rows, new_sequences: list[NewSequence], prefills: list[Sequence], budget: int) -> None:
        """Starts waiting sequences, in order, while there is room in the step, a slot, and blocks for the whole
        prompt beside what the `prefills` under way still need.
        """
        if not self._waiting:
            return
        reserved = sum(self._num_blocks_short(s, s.num_uncomputed_tokens) for s in prefills)
        new_bytes = 0
        while budget > 0 and self._waiting and self._free_slots and not self._is_alone():
            sequence = next(iter(self._waiting.values()))
            if sequence.num_losses >= _LOSSES_BEFORE_ALONE and self._running:
                return
            num_tokens = len(sequence.token_ids)
            needed = self._num_blocks_short(sequence, num_tokens)
            if reserved + needed > self.pool.num_free:
                return
            new_bytes += sequence.num_bytes
            if new_sequences and new_bytes > self.config.max_new_sequence_bytes:
                return
            chunk = min(num_tokens, budget)
            budget -= chunk
            self._waiting.popitem(last=False)
            self._start(sequence)
            self._add_row(rows, sequence, chunk, new_sequences)
            reserved += needed - len(sequence.block_ids)

    def _is_alone(self) -> bool:
        """Whether the running sequence is one that nobody may run beside."""
        return bool(self._running) and self._running[0].num_losses >= _LOSSES_BEFORE_ALONE

    def _start(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        sequence.slot = self._free_slots.pop()
        sequence.wire_id = self._next_wire_id
        self._next_wire_id += 1
        self._by_wire_id[sequence.wire_id] = sequence
        insort(self._running, sequence, key=_BY_ARRIVAL)

    def _add_row(
        self, rows: Rows, sequence: Sequence, num_tokens: int, new_sequences: list[NewSequence] | None = None
    ) -> None:
        """Plans the next `num_tokens` of a running sequence and gives it the blocks they need."""
        new_blocks = self.pool.allocate(self._num_blocks_short(sequence, num_tokens))
        sequence.block_ids += new_blocks
        rows.wire_ids.append(sequence.wire_id)
        rows.slots.append(sequence.slot)
        rows.num_scheduled_tokens.append(num_tokens)
        rows.num_computed_tokens.append(sequence.num_computed_tokens)
        if new_sequences is None:
            rows.new_block_ids.extend(new_blocks)
        else:
            new_sequences.append(
                NewSequence(sequence, sequence.wire_id, sequence.slot, sequence.num_computed_tokens, new_blocks)
            )
        rows.new_block_offsets.append(len(rows.new_block_ids))
        sequence.num_computed_tokens += num_tokens
        if sequence.num_computed_tokens == len(sequence.token_ids) + sequence.num_promised_tokens:
            sequence.num_promised_tokens += 1
            self._sampling.append(sequence.wire_id)

    def _num_blocks_short(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that a sequence lacks to compute `num_tokens` more."""
        return -(-(sequence.num_computed_tokens + num_tokens) // self.config.block_size) - len(sequence.block_ids)

    def _num_slots_free(self, sequence: Sequence) -> int:
        """KV slots a sequence could fill without taking another one's: in its own last block and in free ones."""
        held = len(sequence.block_ids) + self.pool.num_free
        return held * self.config.block_size - sequence.num_computed_tokens

    # -- Changes of status ---------------------------------------------------------------------------------------------

    def _append(self, sequence: Sequence, token_id: int, result_index: int, outcome: StepOutcome) -> None:
        """One sampled token, and whether it is the last."""
        output_index = sequence.num_output_tokens
        sequence.token_ids.append(token_id)
        sequence.num_promised_tokens -= 1
        sequence.num_losses = 0
        self.counters.generation_tokens += 1
        outcome.tokens.append(NewToken(sequence, output_index, token_id, result_index))
        if token_id in sequence.request.stop_token_ids:
            reason = FinishReason.STOP
        elif output_index + 1 >= sequence.request.max_tokens:
            reason = FinishReason.LENGTH
        else:
            return
        self._remove(sequence)
        outcome.finished.append(FinishedSequence(sequence, reason))

    def _preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's blocks and slot; it waits to be recomputed. Its results in flight will be dropped,
        since it gets another wire id.
        """
        self.counters.preemptions += 1
        self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """From the end of the running ones to the front of the waiting ones."""
        self._running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.WAITING
        self._waiting[sequence.request.key] = sequence
        self._waiting.move_to_end(sequence.request.key, last=False)

    def _enqueue(self, request: SequenceRequest) -> Sequence:
        sequence = Sequence(request, self._next_arrival)
        self._next_arrival += 1
        self._sequences[request.key] = sequence
        self._waiting[request.key] = sequence
        if request.deadline is not None:
            self._add_deadline(request.deadline, sequence)
        return sequence

    def _remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request.key]
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            del self._waiting[sequence.request.key]
        sequence.status = Status.FINISHED

    def _release(self, sequence: Sequence) -> None:
        """Gives back blocks and slot, and has the worker told."""
        del self._by_wire_id[sequence.wire_id]
        self._released.append(sequence.wire_id)
        self._free_slots.append(sequence.slot)
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.slot = -1
        sequence.wire_id = 0
        sequence.num_computed_tokens = 0
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
