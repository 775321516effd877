"""Simulates routers, schedulers and their worker groups in virtual time, in several processes.

Routers get the schedulers' load every LOAD_INTERVAL_S, and schedulers do not communicate with each other. Between two
load reports the schedulers are therefore independent and can run in different processes. The outcome does not depend on
the number of processes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from quire.simulator.device import StepSeconds
from quire.simulator.group import Decider, Group, Overheads, Sample, Visit
from quire.simulator.traces import Request
from services.router.load import LoadTracker, SchedulerLoad
from services.scheduler.core import CoreConfig, Counters, RefusedError
from shared.placement import LOAD_INTERVAL_S, MAX_REFUSALS, Node, chat_key, place


@dataclass(frozen=True, slots=True)
class Layout:
    """The size and configuration of a cluster."""

    num_routers: int
    num_schedulers: int
    num_groups: int  # worker groups, distributed evenly over the schedulers
    core: CoreConfig  # the same for every group
    step: StepSeconds
    overheads: Overheads
    run_ahead: int | None = None

    def groups_of(self, scheduler: int) -> range:
        return range(scheduler, self.num_groups, self.num_schedulers)

    @property
    def group_capacity_tokens(self) -> int:
        return self.core.num_blocks * self.core.block_size


def with_groups(layout: Layout, num_groups: int) -> Layout:
    """Returns the layout with another number of groups. If there are fewer groups than schedulers, the number of
    schedulers is reduced to one per group."""
    return replace(layout, num_groups=num_groups, num_schedulers=min(num_groups, layout.num_schedulers))


class Arrival(NamedTuple):
    """The arrival of a request at a scheduler."""

    time_s: float
    request_index: int
    scheduler: int


class Refusal(NamedTuple):
    request_index: int
    scheduler: int


class ServedRequest(NamedTuple):
    """A served request. Its times are those at which the tokens reach the client, in seconds of virtual time."""

    request_index: int
    scheduler: int
    first_token_s: float
    last_token_s: float
    num_tokens: int


class GroupOutcome(NamedTuple):
    number: int
    counters: Counters
    num_steps: int
    busy_s: float
    peak_used_blocks: int
    samples: list[Sample]
    times_between_tokens: array[float]


class Outcome(NamedTuple):
    """The results of some or all schedulers."""

    served: list[ServedRequest]
    groups: list[GroupOutcome]


class Progress(NamedTuple):
    outstanding_tokens: dict[int, int]  # by scheduler number
    refusals: list[Refusal]


class Schedulers(Protocol):
    """Some of the cluster's schedulers, simulated in this process or in another one. `begin` starts to simulate the
    time before `until`, and `end` returns the results; the two are called alternately. `begin` does not wait for
    another process, so that several processes work in parallel."""

    def begin(self, until: float, arrivals: list[Arrival]) -> None: ...

    def end(self) -> Progress: ...

    def outcome(self) -> Outcome: ...


class _Scheduler:
    """A scheduler: its worker groups, and the requests on their way to it."""

    def __init__(self, layout: Layout, number: int) -> None:
        self.number = number
        self.visits: dict[int, Visit] = {}
        decider = Decider()
        self.groups = {
            group: Group(layout.core, layout.step, layout.overheads, layout.run_ahead, decider)
            for group in layout.groups_of(number)
        }
        self._arrivals: list[tuple[float, int, Visit]] = []

    def expect(self, time_s: float, visit: Visit) -> None:
        heapq.heappush(self._arrivals, (time_s, visit.index, visit))

    def advance(self, until: float) -> Iterator[Refusal]:
        """Simulates all events before `until` in order. Yields the requests that the scheduler refuses."""
        groups = list(self.groups.values())
        while True:
            first = min(groups, key=lambda group: group.next_event_s)
            arrival_s = self._arrivals[0][0] if self._arrivals else math.inf
            if min(arrival_s, first.next_event_s) >= until:
                return
            if first.next_event_s < arrival_s:
                first.next_event()
                continue
            _, index, visit = heapq.heappop(self._arrivals)
            try:
                min(groups, key=lambda group: group.num_unfinished).submit(visit, arrival_s)
                self.visits[index] = visit
            except RefusedError:
                yield Refusal(index, self.number)


class LocalSchedulers:
    def __init__(self, layout: Layout, numbers: Sequence[int], requests: Sequence[Request]) -> None:
        self._requests = requests
        self._schedulers = {number: _Scheduler(layout, number) for number in numbers}
        self._refusals: list[Refusal] = []

    def begin(self, until: float, arrivals: list[Arrival]) -> None:
        for time_s, index, scheduler in arrivals:
            self._schedulers[scheduler].expect(time_s, Visit(index, self._requests[index]))
        self._refusals = [refusal for one in self._schedulers.values() for refusal in one.advance(until)]

    def end(self) -> Progress:
        tokens = {
            number: sum(group.core.num_outstanding_tokens for group in one.groups.values())
            for number, one in self._schedulers.items()
        }
        return Progress(tokens, self._refusals)

    def outcome(self) -> Outcome:
        return Outcome(
            [
                ServedRequest(v.index, one.number, v.first_token_s, v.last_token_s, v.num_tokens)
                for one in self._schedulers.values()
                for v in one.visits.values()
            ],
            [
                GroupOutcome(
                    number, group.core.counters, group.num_steps, group.busy_s, group.peak_used_blocks, group.samples,
                    group.times_between_tokens,
                )
                for one in self._schedulers.values()
                for number, group in one.groups.items()
            ],
        )  # fmt: skip


class _RemoteSchedulers:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, until: float, arrivals: list[Arrival]) -> None:
        self._connection.send((until, arrivals))

    def end(self) -> Progress:
        progress: Progress = self._connection.recv()
        return progress

    def outcome(self) -> Outcome:
        self._connection.send(None)
        outcome: Outcome = self._connection.recv()
        return outcome


def _serve(connection: Connection, layout: Layout, numbers: Sequence[int], requests: Sequence[Request]) -> None:
    schedulers = LocalSchedulers(layout, numbers, requests)
    try:
        while (order := connection.recv()) is not None:
            schedulers.begin(*order)
            connection.send(schedulers.end())
        connection.send(schedulers.outcome())
    except (EOFError, KeyboardInterrupt):
        return  # the parent process has ended


class _Router:
    """A simulated router. It places requests by its view of every scheduler's load."""

    def __init__(self, layout: Layout) -> None:
        self._trackers = [LoadTracker() for _ in range(layout.num_schedulers)]
        self._capacity = [
            len(layout.groups_of(number)) * layout.group_capacity_tokens for number in range(layout.num_schedulers)
        ]

    def report(self, outstanding_tokens: dict[int, int], now: float) -> None:
        for number, tokens in outstanding_tokens.items():
            self._trackers[number].report(SchedulerLoad(outstanding_tokens=tokens), now)

    def place(self, request: Request, refused_by: Sequence[int]) -> int:
        nodes = [
            Node(str(number), tracker.outstanding_tokens, self._capacity[number])
            for number, tracker in enumerate(self._trackers)
            if number not in refused_by
        ]
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        number = int(place(chat_key("", "", [("user", request.beginning)]), num_tokens, nodes).name)
        self._trackers[number].sent(num_tokens)
        return number


class SimulationResult(NamedTuple):
    outcome: Outcome
    # Maps the index of each refused request to the schedulers that refused it because their queues were full. This
    # includes requests that another scheduler served later.
    refused_by: dict[int, list[int]]
    refused: list[int]  # requests that no scheduler served
    too_long: list[int]  # requests that exceed the context


def simulate(layout: Layout, requests: Sequence[Request], num_processes: int = 1) -> SimulationResult:
    """Simulates the cluster. `requests`: sorted by arrival."""
    with _schedulers(layout, requests, min(num_processes, layout.num_schedulers)) as parts:
        return _Simulation(layout, requests, parts).run()


@contextmanager
def _schedulers(layout: Layout, requests: Sequence[Request], num_processes: int) -> Iterator[list[Schedulers]]:
    numbers = range(layout.num_schedulers)
    if num_processes == 1:
        yield [LocalSchedulers(layout, numbers, requests)]
        return
    # Processes are not forked. Forked processes would inherit each other's pipes, and also locks of threads that do not
    # exist in them.
    context = get_context("spawn")
    with ExitStack() as stack:
        parts: list[Schedulers] = []
        for offset in range(num_processes):
            ours, theirs = context.Pipe()
            arguments = (theirs, layout, numbers[offset::num_processes], requests)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)
            parts.append(_RemoteSchedulers(ours))
        yield parts


class _Simulation:
    def __init__(self, layout: Layout, requests: Sequence[Request], parts: list[Schedulers]) -> None:
        self._layout = layout
        self._requests = requests
        self._parts = parts
        self._routers = [_Router(layout) for _ in range(layout.num_routers)]
        self._turns = itertools.cycle(self._routers)
        self._refused_by: dict[int, list[int]] = {}
        self._refused: list[int] = []
        self._num_reports = 0  # number of load reports that each scheduler has sent
        self._last_arrival_s = -math.inf  # latest arrival of all placed requests

    def run(self) -> SimulationResult:
        limit = self._layout.core.max_model_len
        sizes = [request.num_prompt_tokens + request.num_output_tokens for request in self._requests]
        too_long = [index for index, size in enumerate(sizes) if size > limit]
        to_come = iter([index for index, size in enumerate(sizes) if size <= limit])
        following = next(to_come, None)
        again: list[int] = []  # requests to place again after a refusal
        while following is not None or again or self._last_arrival_s >= self._now:
            if following is not None and not again and self._last_arrival_s < self._now:
                # No request has to be placed before the next arrival: skip the load reports until then.
                self._advance(max(self._num_reports, int(self._requests[following].arrival_s / LOAD_INTERVAL_S)), [])
            arrivals = [self._place(index, self._now) for index in again]
            end = self._num_reports + 1
            while following is not None and self._requests[following].arrival_s < end * LOAD_INTERVAL_S:
                arrivals.append(
                    self._place(following, self._requests[following].arrival_s + self._layout.overheads.request)
                )
                following = next(to_come, None)
            again = self._advance(end, arrivals)
        self._advance(None, [])
        outcomes = [part.outcome() for part in self._parts]
        served = sorted(one for outcome in outcomes for one in outcome.served)
        groups = sorted((one for outcome in outcomes for one in outcome.groups), key=lambda group: group.number)
        assert len(served) + len(self._refused) + len(too_long) == len(self._requests), "a request is lost"
        return SimulationResult(Outcome(served, groups), self._refused_by, self._refused, too_long)

    @property
    def _now(self) -> float:
        return self._num_reports * LOAD_INTERVAL_S

    def _place(self, index: int, time_s: float) -> Arrival:
        self._last_arrival_s = max(self._last_arrival_s, time_s)
        scheduler = next(self._turns).place(self._requests[index], self._refused_by.get(index, ()))
        return Arrival(time_s, index, scheduler)

    def _advance(self, num_reports: int | None, arrivals: list[Arrival]) -> list[int]:
        """Simulates all schedulers, in parallel, until each has sent `num_reports` load reports since the start. If
        `num_reports` is None, simulates them until all are idle. Returns the indices of the refused requests that have
        to be placed again.
        """
        if num_reports == self._num_reports:
            return []
        until = math.inf if num_reports is None else num_reports * LOAD_INTERVAL_S
        num_parts = len(self._parts)
        for number, part in enumerate(self._parts):
            part.begin(until, [arrival for arrival in arrivals if arrival.scheduler % num_parts == number])
        progress = [part.end() for part in self._parts]
        if num_reports is not None:
            # All these reports are equal, and two of them are enough. A router adds, to the tokens of a report, the
            # tokens that it sent after the previous report. Between two of these reports it has sent nothing, so more
            # reports would change nothing.
            for _ in range(min(2, num_reports - self._num_reports)):
                for router, one in itertools.product(self._routers, progress):
                    router.report(one.outstanding_tokens, until)
            self._num_reports = num_reports
        again = []
        for index, scheduler in sorted(refusal for one in progress for refusal in one.refusals):
            refused_by = self._refused_by.setdefault(index, [])
            refused_by.append(scheduler)
            if len(refused_by) < min(MAX_REFUSALS, self._layout.num_schedulers):
                again.append(index)
            else:
                self._refused.append(index)
        return again
