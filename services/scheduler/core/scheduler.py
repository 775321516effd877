"""Continuous batching over one worker group: which tokens each step computes, and in which blocks.

Sequences have no separate phases for prefill and decode. A step computes tokens of a sequence that are not computed
yet. So a chunk of a prompt, a decode, and a preempted sequence that starts again are planned in the same way
(iteration-level scheduling: Yu et al., Orca, OSDI 2022, section 3; paged blocks: Kwon et al., vLLM, SOSP 2023, section
4).

Several plans can be in flight. A plan can also compute "promised" tokens, which an earlier plan in flight will sample.
No plan goes past `max_tokens`. If an end token, a stop string or an abort ends a sequence while plans that compute it
are in flight, their results for the sequence are dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import islice
from typing import Generic

from services.scheduler.core.admission import Admission
from services.scheduler.core.budget import StepBudget
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.counters import Counters
from services.scheduler.core.kv_memory import KVMemory
from services.scheduler.core.losses import lose_worker
from services.scheduler.core.outcome import (
    FinishedSequence,
    StepOutcome,
    append_tokens,
    fail_sequences,
    publish_blocks,
    requeue_outgrown,
    take_prompt_logprobs,
    take_vectors,
)
from services.scheduler.core.pacing import StepTimes
from services.scheduler.core.plan import StepPlan, StepResult
from services.scheduler.core.preemption import Preemption
from services.scheduler.core.preparations import Preparations
from services.scheduler.core.request import RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import ErrorKind, Failure, FinishReason, Sequence, Status
from services.scheduler.core.step_builder import StepBuilder
from services.scheduler.core.trials import Trials
from services.scheduler.core.turns import Turn

# Besides the places that are open to every sequence, the queue has reserved places: one for each _SPARE_PART open
# places. Only first sequences of requests (see `Turn.is_first`) get a reserved place. So one request for hundreds of
# sequences cannot fill the queue.
_SPARE_PART = 16


class RefusedError(Exception):
    """A request is refused. `failure` tells the client why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Scheduler(Generic[RequestT]):
    """Plans the steps of one worker group and applies their results. Not thread-safe.

    `counters`: the counters of the scheduler that this one replaces, if any; this one continues to count in them.
    """

    def __init__(self, config: CoreConfig, counters: Counters | None = None) -> None:
        self.config = config
        self.memory: KVMemory[RequestT] = KVMemory(config)
        self.counters = Counters() if counters is None else counters
        self.step_times = StepTimes()
        self.preparations = Preparations()
        self._roster = Roster(config, self.memory)
        self._preemption = Preemption(config, self._roster, self.memory, self.step_times, self.counters)
        self._admission = Admission(
            config, self._roster, self.memory, self.preparations, self.step_times, self.counters
        )
        self._trials = Trials(self._roster, self.preparations)
        self._in_flight: deque[StepPlan[RequestT]] = deque()
        self._next_step_id = 1

    # -- Requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: RequestT) -> Sequence[RequestT]:
        """Queues a sequence. Raises RefusedError if the sequence can never run, or if the queue is full."""
        self._check_request(request)
        if not request.was_accepted:
            self.check_room(request.flow, 1)
            # If another scheduler accepted the request before, that scheduler has counted the prompt.
            self.counters.prompt_tokens += len(request.prompt_token_ids)
        sequence = self._roster.enqueue(request)
        self._admission.prepare(sequence)
        return sequence

    def check_room(self, flow: Hashable, num_new: int) -> None:
        """Raises RefusedError if the batch and the queue have no room for `num_new` more sequences of one request."""
        roster, config = self._roster, self.config
        num_free = roster.num_common_slots_free
        room = config.max_num_queued_reqs
        if num_new == 1 and not roster.turns.is_known(flow):
            num_free += roster.num_reserved_slots_free
            room += room // _SPARE_PART
        # Besides a slot, each sequence needs at least one block to start.
        room += min(num_free, self.memory.pool.num_free)
        if self.num_waiting + num_new <= room:
            return
        most = config.max_num_queued_reqs + min(roster.num_common_slots, config.num_blocks)
        num_own = roster.turns.num_sequences(flow)
        num_of_request = num_own + num_new
        if num_of_request <= most and 0 < num_own == len(roster.by_key):
            # Only the request's own sequences hold places and blocks, so trying again would not help.
            most = num_own
        if num_of_request > most:
            message = (
                f"This request asks for at least {num_of_request} sequences, but this server accepts at most {most} "
                "per request. Ask for fewer."
            )
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, message, field="choices"))
        message = (
            f"The queue is full: {self.num_waiting} sequences are waiting, and there is no room for {num_new} more."
        )
        raise RefusedError(Failure(ErrorKind.RESOURCE_EXHAUSTED, message, 1.0))

    def adopt(self, drained: Sequence[RequestT]) -> None:
        """Queues a sequence that another scheduler's `drain` returned. It keeps its arrival, and starts before new
        sequences. A full queue does not refuse it, because it was accepted before. Raises RefusedError if this
        scheduler can never run it."""
        output = drained.token_ids[drained.num_prompt_tokens :]
        wanted = drained.request.num_prompt_logprobs
        request = replace(
            drained.request,
            output_token_ids=output,
            num_prompt_logprobs=None if wanted is None else drained.num_prompt_logprobs,
        )
        self._check_request(request)
        self._roster.enqueue(request, drained)

    def abort(self, key: Hashable) -> bool:
        """Ends a sequence and frees its blocks at once. No outcome reports its end. Returns False if there is no such
        sequence."""
        sequence = self._roster.by_key.get(key)
        if sequence is None:
            return False
        self.counters.aborts += 1
        self._roster.remove(sequence)
        return True

    def expire(self, now: float) -> list[FinishedSequence[RequestT]]:
        """Ends and returns the sequences whose deadline is past. `now`: seconds on the clock of the deadlines."""
        expired = []
        for sequence in self._roster.expired(now):
            self._roster.remove(sequence)
            where = "generating" if sequence.num_output_tokens else "waiting for its turn"
            failure = Failure(ErrorKind.DEADLINE_EXCEEDED, f"the request's time ran out while {where}")
            expired.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        return expired

    def prepared(self, key: bytes, error: str = "") -> list[FinishedSequence[RequestT]]:
        """Takes note that the worker has ended a preparation. The sequences that wait for it can then start. If `error`
        is not empty, they fail instead, and are returned."""
        preparation = self.preparations.finish(key, not error)
        finished = []
        for sequence in self._roster.waiting_for(preparation) if error else []:
            self._roster.remove(sequence)
            failure = Failure(ErrorKind.INVALID_ARGUMENT, error)
            finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
        self._roster.wake(preparation)
        self.preparations.fill_places(self._roster.is_awaited)
        return finished

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan[RequestT] | None:
        """Plans the next step. Returns None if there is nothing to do until the result of a plan in flight comes."""
        if self._trials.current is not None and self._trials.is_over:
            self._trials.end()
        candidates = self._trials.candidates()
        if candidates:
            prefills = [sequence for sequence in self._roster.running if sequence.num_uncomputed_tokens > 1]
            first = (suspect for suspect in candidates if self._admission.can_start_alone(suspect, prefills))
            if (suspect := next(first, None)) is not None:
                self._trials.choose(suspect)
        if self._trials.current is not None:
            return self._schedule_trial(self._trials.current)
        # While a suspect waits for blocks, no other sequence starts: it would take the blocks that become free.
        plan = self._schedule_all(admits=not candidates or not self._roster.running)
        if plan is None and not self._in_flight and self._trials.skip_rest():
            return self.schedule()
        return plan

    def _schedule_trial(self, suspect: Sequence[RequestT]) -> StepPlan[RequestT] | None:
        """Plans a step of the suspect alone. Returns None while something else is in flight, or while the worker
        prepares something for the suspect."""
        if not self._trials.has_begun:
            if self._in_flight or self.preparations.is_pending:
                return None
            self._trials.has_begun = True
        if suspect.waits_for is not None:
            return None
        step: StepBuilder[RequestT] = StepBuilder(self.config.block_size, self.memory)
        needs = suspect.needs
        if suspect.status is Status.WAITING and needs is not None and not self.preparations.is_ready(needs):
            self.preparations.request_alone(needs)
            self._roster.set_aside(suspect, needs)
            return None
        if suspect.status is Status.WAITING:
            self._admission.start_alone(suspect, step, StepBudget(self.config, self.step_times, 0, 0.0))
            self._trials.started()
        else:
            prefills = step.add_decodes([suspect], self._preemption)
            step.add_prefills(prefills, StepBudget(self.config, self.step_times, len(step.rows), step.num_pairs))
        if not step.rows and not self._in_flight:
            # Running sequences hold the blocks that the suspect needs.
            if suspect.status is Status.RUNNING:
                self._roster.requeue(suspect)
            self._trials.end()
            return self.schedule()
        return self._plan(step)

    def _schedule_all(self, *, admits: bool = True) -> StepPlan[RequestT] | None:
        """Plans a step of all sequences that are no suspects. `admits`: whether waiting sequences may start."""
        step: StepBuilder[RequestT] = StepBuilder(self.config.block_size, self.memory)
        running = self._roster.running
        num_running = len(running)
        # Decodes are added first, so that prompts get only the room that decodes leave in the step.
        prefills = step.add_decodes(running, self._preemption)
        ranks = self._roster.prompt_ranks(prefills) if prefills else []
        budget = StepBudget(self.config, self.step_times, len(step.rows), step.num_pairs)
        is_short = len(running) < num_running  # a sequence was preempted
        begun: list[Sequence[RequestT]] = []
        if ranks and admits and not is_short:
            begun = self._admission.admit(step, prefills, budget, before=ranks[0][0])
        step.add_prefills([sequence for _, sequence in ranks], budget)
        if admits and not is_short:
            self._admission.admit(step, prefills + begun, budget)
        if not step.rows and not self._in_flight and running:
            # Partly computed prompts hold all blocks. Preempting the sequence that ranks last lets the others continue.
            self._preemption.preempt_last()
            return self._schedule_all(admits=admits)
        return self._plan(step)

    def _plan(self, step: StepBuilder[RequestT]) -> StepPlan[RequestT] | None:
        if not step.rows and not self._roster.has_released and not self.memory.must_move:
            return None
        plan = StepPlan(
            step_id=self._next_step_id,
            released_wire_ids=self._roster.take_released(),
            new_sequences=step.new_sequences,
            rows=step.rows,
            sampling_wire_ids=step.sampling_wire_ids,
            num_pairs=step.num_pairs,
            num_prompt_logprobs=step.num_prompt_logprobs,
            moves=self.memory.take_moves(),
            preempted=self._preemption.take_preempted(),
        )
        self.counters.swapped_out_blocks += len(plan.moves.swap_out)
        self.counters.swapped_in_blocks += len(plan.moves.swap_in)
        self._next_step_id += 1
        self._in_flight.append(plan)
        self._roster.turns.num_steps += 1
        self.counters.count_step(plan.num_tokens)
        return plan

    @property
    def is_cut_short(self) -> bool:
        """Whether another call of `schedule` might start waiting sequences that the last call did not look at."""
        return self._admission.is_cut_short and self._trials.current is None

    def expected_seconds(self, plan: StepPlan[RequestT]) -> float:
        """Expected duration of this plan's step in seconds, estimated from past steps."""
        return self.step_times.step_seconds(plan.num_tokens, plan.num_pairs, plan.num_prompt_logprobs, len(plan.rows))

    def expected_seconds_of_moves(self, plan: StepPlan[RequestT]) -> float:
        """Expected duration of this plan's copies between device and host, in seconds; 0 if unknown."""
        num_blocks = len(plan.moves.swap_in) + len(plan.moves.swap_out)
        seconds = self.config.seconds_per_swapped_block
        return num_blocks * seconds if math.isfinite(seconds) else 0.0

    def apply(self, result: StepResult) -> StepOutcome[RequestT]:
        """Applies the result of the oldest step in flight. Tokens of sequences that have ended or were preempted are
        dropped.

        Raises ValueError if the result belongs to another step, or does not match the plan.
        """
        if not self._in_flight:
            raise ValueError(f"result of step {result.step_id} came, expected none")
        plan = self._in_flight[0]
        result.check(plan)
        self._in_flight.popleft()
        self.memory.finish_moves(plan.moves)
        if result.seconds:
            self.step_times.observe(
                plan.num_tokens, plan.num_pairs, result.seconds, plan.num_prompt_logprobs, len(plan.rows)
            )
        roster = self._roster
        outcome: StepOutcome[RequestT] = StepOutcome()
        fail_sequences(result, roster, self.memory, outcome)
        publish_blocks(plan.moves, roster, self.memory)
        take_prompt_logprobs(result, roster, outcome)
        requeue_outgrown(result, roster, outcome)
        append_tokens(result, roster, outcome)
        self.counters.generation_tokens += len(outcome.tokens)
        if self.config.fair_queueing:
            for sequence, *_ in outcome.tokens:
                roster.waiting.serve(sequence, 1)
        take_vectors(result, roster, outcome)
        return outcome

    def reset(self, *, is_exit: bool = False) -> list[FinishedSequence[RequestT]]:
        """Forgets the blocks, slots and steps in flight of a worker group that is lost or replaced. Every sequence
        goes back to the queue, with its prompt and the output known so far. `is_exit`: whether the worker's process
        ended unexpectedly, perhaps because of a sequence. Returns the sequences that fail because workers exited twice
        while they ran alone.
        """
        in_flight = {wire_id for plan in self._in_flight for wire_id in plan.rows.wire_ids}
        being_made = self.preparations.being_made
        preparing = self.preparations.forget_worker()
        self._trials.forget_worker()
        finished = lose_worker(self._roster, in_flight, being_made, is_exit=is_exit)
        self.memory.forget_worker(self._roster.by_key.values(), [plan.moves for plan in self._in_flight])
        self._in_flight.clear()
        for preparation in preparing:
            self._roster.wake(preparation)
        self._roster.forget_worker()
        self._next_step_id = 1
        return finished

    def suspects(self) -> list[Sequence[RequestT]]:
        """The sequences that are suspected at all of crashing workers (`Sequence.suspicion`)."""
        return [sequence for sequence in self._roster.by_key.values() if sequence.suspicion]

    def suspicion_of(self, key: Hashable) -> int | None:
        """Returns how much a sequence is suspected of crashing workers; None if there is no such sequence."""
        sequence = self._roster.by_key.get(key)
        return None if sequence is None else sequence.suspicion

    def withdraw(self, key: Hashable, suspicion: int) -> bool:
        """Sets a sequence's suspicion back, because its worker did not exit after all. Returns False if there is no
        such sequence, or if it is not suspected any more."""
        sequence = self._roster.by_key.get(key)
        if sequence is None or sequence.suspicion <= suspicion:
            return False
        self._roster.withdraw(sequence, suspicion)
        return True

    def fits(self, request: RequestT) -> bool:
        """Whether the request's prompt and longest possible output together fit in the context."""
        return len(request.prompt_token_ids) + request.work.max_tokens <= self.config.max_model_len

    def fit_in(self, takers: Items[Scheduler[RequestT]]) -> bool:
        """Whether every sequence fits in the context of at least one of the other groups' schedulers."""
        requests = (sequence.request for sequence in self._roster.by_key.values())
        return all(any(taker.fits(request) for taker in takers) for request in requests)

    def num_found_tokens(self, sequence: Sequence[RequestT]) -> int:
        """Number of tokens of another scheduler's sequence that this one would not have to compute, because their
        blocks are in the prefix cache, or are about to be."""
        return len(self.memory.find(sequence)) * self.config.block_size

    def drain(
        self,
        takers: Items[Scheduler[RequestT]] | None = None,
        may_move: Callable[[Sequence[RequestT]], bool] = lambda _: True,
        most: int | None = None,
    ) -> list[Sequence[RequestT]]:
        """Removes sequences, and returns them in the order of arrival for other groups' schedulers to adopt. These are
        all sequences or, if `takers` is given, those that fit in the context of at least one of them, without those
        that may not move. `most`: number of sequences to remove at most. The `turn.step` of a returned sequence is what
        is left of its delay, in steps."""
        able = (
            sequence
            for sequence in self._roster.by_arrival()
            if (takers is None or any(taker.fits(sequence.request) for taker in takers)) and may_move(sequence)
        )
        sequences = list(islice(able, most))
        num_steps = self._roster.turns.num_steps
        for sequence in sequences:
            self._roster.remove(sequence)
            sequence.turn = Turn(max(0, sequence.turn.step - num_steps), sequence.turn.is_first)
        return sequences

    # -- State, for load reports and tests -----------------------------------------------------------------------------

    @property
    def num_free_places(self) -> int:
        """Number of sequences that could run besides those that run and wait, as far as slots go."""
        return max(0, self.config.max_num_seqs - self.num_running - self.num_waiting)

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def running(self) -> tuple[Sequence[RequestT], ...]:
        """The running sequences, by rank."""
        return tuple(self._roster.running)

    @property
    def sequences(self) -> list[Sequence[RequestT]]:
        """All sequences, in the order of arrival."""
        return list(self._roster.by_arrival())

    @property
    def num_waiting(self) -> int:
        return self._roster.num_waiting

    @property
    def num_deferred(self) -> int:
        """Number of the waiting sequences that could not start even in an empty batch: they wait for a preparation, or
        for another sequence that computes the same prefix."""
        return self._roster.num_set_aside

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_outstanding_tokens(self) -> int:
        return self._roster.num_outstanding_tokens

    def check_integrity(self) -> None:
        """Asserts the invariants that hold between any two calls."""
        in_flight = [plan.moves for plan in self._in_flight]
        self.memory.check_integrity(self._roster.running, self._roster.by_key.values(), in_flight)
        self._roster.check_integrity()

    def _check_request(self, request: RequestT) -> None:
        if not request.prompt_token_ids:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "the prompt is empty"))
        if not self.fits(request):
            message = (
                f"{len(request.prompt_token_ids)} prompt tokens and {request.work.max_tokens} output tokens exceed "
                f"the context of {self.config.max_model_len}"
            )
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, message))
        if len(request.output_token_ids) >= request.work.max_results:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "nothing is left to generate"))
        if request.key in self._roster.by_key:
            raise RefusedError(Failure(ErrorKind.INVALID_ARGUMENT, "a sequence of this name is under way already"))
