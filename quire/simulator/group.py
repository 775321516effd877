"""Simulates one worker group in virtual time. The scheduler's core and its `RunAhead` are the real ones. The worker is
simulated: its steps take the times that `StepSeconds` predicts for the device."""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.simulator.device import StepSeconds
from quire.simulator.traces import Request
from services.scheduler.core import (
    CoreConfig,
    FinishReason,
    Generate,
    RunAhead,
    Scheduler,
    SequenceRequest,
    StepPlan,
    StepResult,
    pairs,
)

# Seconds between two samples of queue and memory.
SAMPLE_S = 1.0
# The id that every output token has. No prompt contains this id.
_TOKEN = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds that the work outside the forward pass takes. They were measured on two cores of a server
    (docs/performance.md)."""

    request: float = 0.005  # from the client's socket to the scheduler: gateway, router, tokenizer
    hop: float = 0.0002  # a message between two services
    plan: float = 0.00002  # per step: schedule(), apply(), and the conversion of messages
    plan_row: float = 0.0000022  # the same, per sequence in the step
    # Added to each calibrated step if other services share the worker's processor.
    step: float = 0.0


@dataclass(slots=True, eq=False)
class Visit:
    """A request at a worker group. Its times are those at which tokens reach the client, in seconds of virtual time."""

    index: int  # index of the request in the trace
    request: Request
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class VisitRequest(SequenceRequest):
    """The request that the core gets for a `Visit`. Its key is the `Visit`."""

    key: Visit = field()


class Sample(NamedTuple):
    """The state of a group, sampled every SAMPLE_S from time 0."""

    num_running: int
    num_waiting: int
    num_used_blocks: int


class _InFlight(NamedTuple):
    plan: StepPlan[VisitRequest]
    sent_s: float
    queued_s: float  # duration of the wait at the worker
    run_s: float
    result_s: float  # time at which the scheduler gets the result


class Decider:
    """The processor core on which a scheduler plans the steps of all its groups."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def decide(self, now: float, seconds: float) -> float:
        """Occupies the core for `seconds`, from time `now` or from the end of its previous work if that is later.
        Returns the time at which the new work is finished."""
        self._free_s = max(now, self._free_s) + seconds
        return self._free_s


class Group:
    def __init__(
        self, config: CoreConfig, step: StepSeconds, overheads: Overheads, run_ahead: int | None, decider: Decider
    ) -> None:
        self.core: Scheduler[VisitRequest] = Scheduler(config)
        self.busy_s = 0.0  # time that the worker spent on steps
        self.num_steps = 0
        self.peak_used_blocks = 0
        self.samples: list[Sample] = []
        self.times_between_tokens = array("d")
        self._now = 0.0
        self._step = step
        self._overheads = overheads
        self._run_ahead = RunAhead(run_ahead)
        self._decider = decider
        self._in_flight: deque[_InFlight] = deque()
        self._worker_free_s = 0.0
        self._has_arrivals = False
        # Time until which `RunAhead` holds back the next plan; infinite if no plan is held back.
        self._held_until = math.inf
        for num_tokens in (1, 128, 1, 128):  # step times like those that a worker reports when a scheduler claims it
            self.core.step_times.observe(num_tokens, pairs(0, num_tokens), step.of_prompt(num_tokens))

    @property
    def num_unfinished(self) -> int:
        return self.core.num_running + self.core.num_waiting

    @property
    def next_event_s(self) -> float:
        """Time of the group's next event, unless a request arrives earlier."""
        if self._has_arrivals:
            return self._now
        return min(self._held_until, self._in_flight[0].result_s if self._in_flight else math.inf)

    def submit(self, visit: Visit, now: float) -> None:
        """Submits a request at time `now`. Raises RefusedError if the queue is full."""
        self._pass_time(now)
        request = visit.request
        self.core.submit(VisitRequest(visit, request.token_ids, Generate(request.num_output_tokens)))
        # Defer planning to the next event, so that requests with the same arrival time start in one step.
        self._has_arrivals = True

    def next_event(self) -> None:
        """Simulates the event at `next_event_s`."""
        if self._has_arrivals:
            self._has_arrivals = False
            self._pump()
        elif self._held_until <= self._in_flight[0].result_s:
            self._pass_time(self._held_until)
            self._pump()
        else:
            step = self._in_flight.popleft()
            self._pass_time(step.result_s)
            self._apply(step)

    def _pass_time(self, now: float) -> None:
        while len(self.samples) * SAMPLE_S <= now:
            num_used_blocks = self.core.memory.pool.num_used
            self.samples.append(Sample(self.core.num_running, self.core.num_waiting, num_used_blocks))
        self._now = now

    def _pump(self) -> float:
        """Plans steps until the pipeline is full or no sequence can run. Returns the time at which the scheduler has
        finished planning."""
        decided, overheads = self._now, self._overheads
        self._held_until = math.inf
        while self.core.num_in_flight < self._run_ahead.depth:
            if seconds := self._run_ahead.seconds_to_hold(decided):
                self._held_until = decided + seconds
                break
            if (plan := self.core.schedule()) is None:
                if self.core.is_cut_short:
                    continue
                break
            decided = self._decider.decide(self._now, overheads.plan + overheads.plan_row * len(plan.rows))
            self._run_ahead.sent(decided, self.core.expected_seconds(plan))
            arrived = decided + overheads.hop
            start = max(arrived, self._worker_free_s)
            seconds = self._step.of(plan) + self._swap_seconds(plan) + (overheads.step if len(plan.rows) else 0.0)
            self._worker_free_s = start + seconds
            self.busy_s += seconds
            self.num_steps += len(plan.rows) > 0
            self.peak_used_blocks = max(self.peak_used_blocks, self.core.memory.pool.num_used)
            result = self._worker_free_s + overheads.hop
            self._in_flight.append(_InFlight(plan, decided, start - arrived, seconds, result))
        return decided

    def _swap_seconds(self, plan: StepPlan[VisitRequest]) -> float:
        num_blocks = len(plan.moves.swap_out) + len(plan.moves.swap_in)
        return num_blocks * self.core.config.seconds_per_swapped_block if num_blocks else 0.0

    def _apply(self, step: _InFlight) -> None:
        self._run_ahead.answered(self._now)
        ids = step.plan.sampling_wire_ids
        outcome = self.core.apply(StepResult(step.plan.step_id, ids, [_TOKEN] * len(ids), seconds=step.run_s))
        answered = self._pump()
        self._run_ahead.observe(answered - step.sent_s - step.queued_s, step.run_s)
        seen = step.result_s + self._overheads.hop
        times = self.times_between_tokens
        for sequence, *_ in outcome.tokens:
            visit = sequence.request.key
            if visit.num_tokens:
                times.append(seen - visit.last_token_s)
            else:
                visit.first_token_s = seen
            visit.last_token_s = seen
            visit.num_tokens += 1
        for end in outcome.finished:
            assert end.reason is FinishReason.LENGTH, end
