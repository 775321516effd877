"""Continuous batching over one worker group: which tokens each step computes, and in which blocks.

There are no phases. Every sequence has tokens known or promised and tokens computed, and must catch up; a chunk of
prefill, a decode and a resumed preemption are the same thing (iteration-level scheduling: Yu et al., Orca, OSDI 2022,
section 3; paged blocks: Kwon et al., vLLM, SOSP 2023, section 4).

Several plans may be in flight. A plan may schedule tokens that an earlier one still has to sample ("promised"); it
never goes past `max_tokens`, so only an end token, a stop string or an abort leaves results that nobody wants, and
those are dropped.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from .config import CoreConfig, PreemptionMode
from .kv_memory import KVMemory, num_computed
from .pacing import StepBudget, StepTimes, pairs
from .plan import U32, NewSequence, PromptLogprobs, Rows, StepPlan, StepResult
from .prefix_cache import Prefix
from .preparations import Preparations
from .roster import Roster
from .sequence import ErrorKind, Failure, FinishReason, Sequence, SequenceRequest, Status

# Sequences found in one step to need what others are computing, or what is not prepared; more are left for the next.
_MAX_SET_ASIDE = 64
# Losses of a worker in a row, without a new token, after which a sequence is a suspect: nothing is prepared and nobody
# runs beside it until it brings one; and after which it fails. So a sequence that kills its workers is found, and those
# beside it go on.
_LOSSES_BEFORE_SUSPICION = 2
_LOSSES_BEFORE_FAILURE = 3
# Tokens of prompts whose log probabilities are wanted, in a step: keeps its result under half a megabyte (172 bytes for
# each, with 20 of the likeliest) and the output layer's work for them bounded.
_MAX_PROMPT_LOGPROBS = 2048


class RefusedError(Exception):
    """A request that cannot be taken. `failure` says why, for the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


# Sequence, index in its output, token id, and place in the StepResult's columns. One for each row of each step, and a
# plain tuple is made in a seventh of the time of a named one.
NewToken = tuple[Sequence, int, int, int]


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    sequence: Sequence
    reason: FinishReason
    failure: Failure | None = None
    embedding: bytes | None = None  # of one that was pooled


@dataclass(slots=True)
class StepOutcome:
    """What a step's result means for the owners of its sequences."""

    prompt_logprobs: list[tuple[Sequence, PromptLogprobs]] = field(default_factory=list)
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
    """Decides. `memory` says where keys and values are, `roster` where every sequence is. Not thread-safe."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.memory = KVMemory(config)
        self.counters = Counters()
        self.step_times = StepTimes()
        self.preparations = Preparations()
        self._roster = Roster(config, self.memory)
        # Of the plan being made: rows that will sample, and the work of its attention.
        self._sampling: array[int] = array(U32)
        self._num_pairs = 0.0
        self._num_prompt_logprobs_left = 0
        self._in_flight: deque[StepPlan] = deque()
        self._next_step_id = 1

    # -- Requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: SequenceRequest) -> Sequence:
        """Queues a sequence. Raises RefusedError if it can never run, or the queue is full."""
        self._check_request(request)
        if self.num_waiting >= self.config.max_num_queued_reqs and not request.was_accepted:
            message = f"{self.num_waiting} requests are waiting already"
            raise RefusedError(Failure(ErrorKind.RESOURCE_EXHAUSTED, message, 1.0))
        self.counters.prompt_tokens += len(request.prompt_token_ids)
        return self._roster.enqueue(request)

    def adopt(self, drained: Sequence) -> None:
        """Queues a sequence that another scheduler's `drain` returned, however long the queue is: it was accepted once.
        Raises RefusedError if it can never run here."""
        output = drained.token_ids[drained.num_prompt_tokens :]
        wanted = drained.request.num_prompt_logprobs
        request = replace(
            drained.request,
            output_token_ids=output,
            num_prompt_logprobs=None if wanted is None else drained.num_prompt_logprobs,
        )
        self._check_request(request)
        self._roster.enqueue(request).num_losses = drained.num_losses

    def abort(self, key: Hashable) -> bool:
        """Ends a sequence without a word to its owner; its blocks are free at once. False if there is no such
        sequence.
        """
        sequence = self._roster.by_key.get(key)
        if sequence is None:
            return False
        self.counters.aborts += 1
        self._roster.remove(sequence)
        return True

    def expire(self, now: float) -> list[FinishedSequence]:
        """Ends the sequences whose deadline is past."""
        expired = []
        for sequence in self._roster.expired(now):
            self._roster.remove(sequence)
            where = "generating" if sequence.num_output_tokens else "waiting for its turn"
            failure = Failure(ErrorKind.DEADLINE_EXCEEDED, f"the request's time ran out while {where}")
            expired.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        return expired

    def prepared(self, key: bytes, error: str = "") -> list[FinishedSequence]:
        """The worker has prepared what this key is the name of, or cannot: then those that need it have failed."""
        preparation = self.preparations.ended(key, not error)
        finished = []
        for sequence in self._roster.waiting_for(preparation) if error else []:
            self._roster.remove(sequence)
            failure = Failure(ErrorKind.INVALID_ARGUMENT, error)
            finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        self._roster.wake(preparation)
        return finished

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do that results in flight do not have to come first for."""
        rows = Rows()
        new_sequences: list[NewSequence] = []
        num_preemptions = self.counters.preemptions
        # Decodes first, so that no prompt, however long, takes their place in the step.
        prefills = self._schedule_decodes(rows)
        budget = StepBudget(self.config, self.step_times, len(rows), self._num_pairs)
        self._num_prompt_logprobs_left = _MAX_PROMPT_LOGPROBS
        self._schedule_prefills(rows, prefills, budget)
        if self.counters.preemptions == num_preemptions:
            self._admit(rows, new_sequences, prefills, budget)
        if not rows and not self._in_flight and self._roster.running:
            # Prompts that are half computed hold all the blocks. The latest gives way; the rest can go on.
            self._preempt(self._roster.running[-1])
            return self.schedule()
        if not rows and not self._roster.has_released and not self.memory.must_move:
            return None
        plan = StepPlan(
            step_id=self._next_step_id,
            released_wire_ids=self._roster.take_released(),
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
        for wire_id, failure in result.errors:
            sequence = self._roster.by_wire_id.get(wire_id)
            if sequence is not None:
                self.memory.distrust(sequence)
                self._roster.remove(sequence)
                outcome.finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        # Before tokens: the last one ends a sequence, and its blocks go back to the pool.
        for sequence, wire_id, num_blocks in plan.moves.filled:
            if sequence.wire_id == wire_id:
                for prefix in self.memory.publish(sequence, num_blocks):
                    self._roster.wake(prefix)
        self._take_prompt_logprobs(result, outcome)
        self._append_tokens(result, outcome)
        for wire_id, embedding in result.pooled:
            sequence = self._roster.by_wire_id.get(wire_id)
            if sequence is None:
                continue
            if sequence.request.pooling is None:
                raise ValueError(f"the result of step {result.step_id} brings a vector where a token was to come")
            self._roster.remove(sequence)
            outcome.finished.append(FinishedSequence(sequence, FinishReason.STOP, embedding=embedding))
        return outcome

    def reset(self) -> list[FinishedSequence]:
        """The worker group is gone, or another one took its place: pages, slots and steps in flight with it. Every
        sequence waits to be planned anew, from its prompt and the output known so far. Returns those that were lost
        with their workers too often.
        """
        in_flight = {wire_id for plan in self._in_flight for wire_id in plan.rows.wire_ids}
        preparing = self.preparations.forget_worker()
        finished = []
        # It prepares one after the other, so the first is what it may have died of.
        for sequence in self._roster.waiting_for(preparing[0]) if preparing else []:
            sequence.num_losses += 1
            if sequence.num_losses >= _LOSSES_BEFORE_FAILURE:
                finished.append(self._give_up(sequence))
        for sequence in reversed(self._roster.running.copy()):
            sequence.num_losses += sequence.wire_id in in_flight
            if sequence.num_losses >= _LOSSES_BEFORE_FAILURE:
                finished.append(self._give_up(sequence))
            else:
                self._roster.requeue(sequence)
        self.memory.lose(self._roster.by_key.values(), [plan.moves for plan in self._in_flight])
        self._in_flight.clear()
        for preparation in preparing:
            self._roster.wake(preparation)
        self._roster.forget_worker()
        self._next_step_id = 1
        return finished

    def drain(self) -> list[Sequence]:
        """Removes and returns every sequence, in the order of arrival, for another group's scheduler to take."""
        sequences = self._roster.by_arrival()
        for sequence in sequences:
            self._roster.remove(sequence)
        return sequences

    # -- State, for load reports and tests -----------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        return self._roster.num_waiting

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_outstanding_tokens(self) -> int:
        return self._roster.num_outstanding_tokens

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        in_flight = [plan.moves for plan in self._in_flight]
        self.memory.check_integrity(self._roster.running, self._roster.by_key.values(), in_flight)
        self._roster.check_integrity()

    # -- Parts of a step -----------------------------------------------------------------------------------------------

    def _schedule_decodes(self, rows: Rows) -> list[Sequence]:
        """A row for every sequence with one token left to compute. Returns the sequences that have more than one.

        The hot loop of a step: what `_add_row` does, for rows of one token, without its calls.
        """
        prefills: list[Sequence] = []
        running, memory, block_size = self._roster.running, self.memory, self.config.block_size
        last_slot = block_size - 1
        new_block_ids, offsets = rows.new_block_ids, rows.new_block_offsets
        add_wire_id, add_slot, add_position = rows.wire_ids.append, rows.slots.append, rows.num_computed_tokens.append
        # Preemption takes sequences off the end meanwhile, none of which has a row yet.
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
                if not self._make_room(sequence):
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
        self._sampling.extend(rows.wire_ids)
        self._num_pairs += sum(rows.num_computed_tokens) + num_rows
        return [sequence for sequence in prefills if sequence.status is Status.RUNNING]

    def _make_room(self, sequence: Sequence) -> bool:
        """Sees to it that a block is free if the next token of `sequence` needs one: the last by rank give theirs
        up. False if that was the sequence itself.
        """
        while self.memory.num_blocks_short(sequence, 1) > self.memory.pool.num_free:
            victim = self._roster.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _schedule_prefills(self, rows: Rows, prefills: list[Sequence], budget: StepBudget) -> None:
        """Chunks of the prompts under way, in order. They take no one's blocks: `_admit` has seen to it that all of
        them fit, and where decodes have grown into that room since, they wait.
        """
        for sequence in prefills:
            room = min(self._max_chunk(sequence, budget), self.memory.num_slots_free(sequence))
            chunk = min(sequence.num_uncomputed_tokens, room)
            if chunk > 0:
                budget.take(sequence.num_computed_tokens, chunk)
                self._add_row(rows, sequence, chunk)

    def _admit(
        self, rows: Rows, new_sequences: list[NewSequence], prefills: list[Sequence], budget: StepBudget
    ) -> None:
        """Starts waiting sequences, in order, while there is room in the step, a slot, and blocks for the whole
        prompt beside what the `prefills` under way still need.
        """
        roster, memory = self._roster, self.memory
        if not roster.waiting or not memory.pool.num_free:  # whoever starts needs a block of its own for its last token
            return
        reserved = sum(memory.num_blocks_short(s, s.num_uncomputed_tokens) for s in prefills)
        new_bytes = 0
        num_set_aside = roster.num_set_aside
        is_suspect_prepared = self._is_suspect_prepared()
        while budget.tokens > 0 and roster.waiting and roster.has_free_slot and not self._is_alone():
            sequence = roster.waiting.first()
            needs, is_suspect = sequence.request.needs, _is_suspect(sequence)
            if is_suspect and (roster.running or self.preparations.is_busy_with_other(needs)):
                return
            if is_suspect_prepared and not is_suspect:
                return
            if needs is not None and not self.preparations.is_ready(needs):
                if not self.preparations.ask(needs):
                    return
                roster.set_aside(sequence, needs)
                is_suspect_prepared = is_suspect
                if roster.num_set_aside - num_set_aside >= _MAX_SET_ASIDE:
                    return
                continue
            found = self._find_prefixes(sequence)
            owned = next((prefix for prefix in reversed(found) if prefix.owner is not None), None)
            if owned is not None:
                roster.set_aside(sequence, owned)
                if roster.num_set_aside - num_set_aside >= _MAX_SET_ASIDE:
                    return
                continue
            if reserved + memory.num_blocks_needed(sequence, found) > memory.pool.num_free:
                return
            new_bytes += sequence.num_bytes
            if new_sequences and new_bytes > self.config.max_new_sequence_bytes:
                return
            if self._max_chunk(sequence, budget) < 1:
                return
            if not self.config.chunked_prefill and len(sequence.token_ids) > budget.tokens:
                return
            self._start(sequence, found)
            num_left = len(sequence.token_ids) - sequence.num_computed_tokens
            chunk = min(num_left, self._max_chunk(sequence, budget))
            budget.take(sequence.num_computed_tokens, chunk)
            self._add_row(rows, sequence, chunk, new_sequences)
            reserved += memory.num_blocks_short(sequence, num_left - chunk)

    def _max_chunk(self, sequence: Sequence, budget: StepBudget) -> int:
        """Of a sequence's next tokens, those that the step has room for."""
        room = budget.max_chunk(sequence.num_computed_tokens)
        return min(room, self._num_prompt_logprobs_left) if sequence.wants_prompt_logprobs else room

    def _is_alone(self) -> bool:
        """Whether the running sequence is one that nobody may run beside."""
        running = self._roster.running
        return bool(running) and _is_suspect(running[0])

    def _is_suspect_prepared(self) -> bool:
        """Whether the worker prepares something for sequences that nobody may run beside."""
        preparation = self.preparations.only_pending
        return preparation is not None and any(map(_is_suspect, self._roster.waiting_for(preparation)))

    def _find_prefixes(self, sequence: Sequence) -> list[Prefix]:
        """What a starting sequence can share or load: what is known of its tokens, but for what is on the host and not
        worth loading.
        """
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
        self._roster.start(sequence, found)
        self._roster.waiting.serve(sequence, len(sequence.token_ids) - sequence.num_computed_tokens)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self.counters.starts += 1
            self.counters.prefix_cache_queries += len(sequence.token_ids)
            self.counters.prefix_cache_hits += sequence.num_cached_tokens

    def _add_row(
        self, rows: Rows, sequence: Sequence, num_tokens: int, new_sequences: list[NewSequence] | None = None
    ) -> None:
        """Plans the next `num_tokens` of a running sequence and gives it the blocks they need."""
        num_computed_tokens = sequence.num_computed_tokens
        new_blocks = self.memory.extend(sequence, num_tokens)
        if sequence.wants_prompt_logprobs:
            self._num_prompt_logprobs_left -= num_tokens
        rows.wire_ids.append(sequence.wire_id)
        rows.slots.append(sequence.slot)
        rows.num_scheduled_tokens.append(num_tokens)
        rows.num_computed_tokens.append(num_computed_tokens)
        if new_sequences is None:
            rows.new_block_ids.extend(new_blocks)
        else:
            wanted_from = sequence.num_prompt_logprobs + 1 if sequence.wants_prompt_logprobs else None
            new_sequences.append(
                NewSequence(
                    sequence,
                    sequence.wire_id,
                    sequence.slot,
                    num_computed_tokens,
                    sequence.block_ids.copy(),
                    wanted_from,
                )
            )
        rows.new_block_offsets.append(len(rows.new_block_ids))
        self._num_pairs += pairs(num_computed_tokens, num_tokens)
        if sequence.num_computed_tokens == sequence.num_planned_tokens:
            sequence.num_planned_tokens += 1
            self._sampling.append(sequence.wire_id)

    # -- Changes of status ---------------------------------------------------------------------------------------------

    def _take_prompt_logprobs(self, result: StepResult, outcome: StepOutcome) -> None:
        """Raises ValueError where entries are missing, or come twice."""
        for entries in result.prompt_logprobs:
            sequence = self._roster.by_wire_id.get(entries.wire_id)
            if sequence is None:
                continue
            num_known = sequence.num_prompt_logprobs + entries.num_tokens
            if entries.first_position != sequence.num_prompt_logprobs + 1 or num_known >= sequence.num_prompt_tokens:
                raise ValueError(
                    f"log probabilities came of prompt tokens from {entries.first_position} on, out of turn"
                )
            sequence.num_prompt_logprobs = num_known
            outcome.prompt_logprobs.append((sequence, entries))

    def _append_tokens(self, result: StepResult, outcome: StepOutcome) -> None:
        """The tokens sampled, and which are their sequences' last. As hot as planning decodes."""
        by_wire_id, tokens = self._roster.by_wire_id, outcome.tokens
        for index, (wire_id, token_id) in enumerate(zip(result.wire_ids, result.token_ids, strict=True)):
            sequence = by_wire_id.get(wire_id)
            if sequence is None:
                continue
            token_ids = sequence.token_ids
            num_tokens = len(token_ids)
            token_ids.append(token_id)
            tokens.append((sequence, num_tokens - sequence.num_prompt_tokens, token_id, index))
            if token_id in sequence.stop_token_ids:
                reason = FinishReason.STOP
            elif num_tokens + 1 >= sequence.max_num_tokens:
                if sequence.request.pooling is not None:
                    raise ValueError(f"the result of step {result.step_id} brings a token where a vector was to come")
                reason = FinishReason.LENGTH
            else:
                continue
            self._roster.remove(sequence)
            outcome.finished.append(FinishedSequence(sequence, reason))
        self.counters.generation_tokens += len(tokens)
        if self.config.fair_queueing:
            for sequence, *_ in tokens:
                self._roster.waiting.serve(sequence, 1)

    def _preempt(self, sequence: Sequence) -> None:
        """A running sequence gives way; it waits to be recomputed, or brought back from the host."""
        self.counters.preemptions += 1
        self._swap_out_if_better(sequence)
        self._roster.requeue(sequence)

    def _swap_out_if_better(self, sequence: Sequence) -> None:
        """Has a sequence's blocks copied to the host, where there is room and that takes less time than to compute them
        again.
        """
        num_tokens = self.memory.num_tokens_to_save(sequence)
        num_blocks = -(-num_tokens // self.config.block_size)
        mode = self.config.preemption_mode
        if not sequence.request.can_resume:
            return
        if mode is PreemptionMode.RECOMPUTE or not 0 < num_blocks <= self.memory.host.num_free:
            return
        if mode is PreemptionMode.AUTO and self.step_times.is_known:
            seconds = 2 * num_blocks * self.config.seconds_per_swapped_block
            if seconds > self.step_times.chunk_seconds(0, num_tokens):
                return
        self.memory.swap_out(sequence)

    def _give_up(self, sequence: Sequence) -> FinishedSequence:
        """Ends one that was lost with its workers too often."""
        self._roster.remove(sequence)
        message = f"{sequence.num_losses} workers in a row were lost while they worked on this request"
        return FinishedSequence(sequence, FinishReason.ERROR, Failure(ErrorKind.INTERNAL, message))

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
        if request.pooling is None and len(request.output_token_ids) >= request.max_tokens:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "nothing is left to generate"))
        if request.key in self._roster.by_key:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "a sequence of this name is under way already"))


def _is_suspect(sequence: Sequence) -> bool:
    """Whether its workers may have died of it."""
    return sequence.num_losses >= _LOSSES_BEFORE_SUSPICION
