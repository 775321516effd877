"""Measures discovery through Redis: 1,000 workers, 100 schedulers, 20 routers and a gateway, all without engines.

The parts are tasks in a few processes, each with the discovery client and the connection that a real part has. Redis is
a real server. Every scheduler lists the workers, every router the schedulers, the gateway the routers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.discovery.members import Change, Report, address_of
from benchmarks.discovery.process import MemberProcess
from shared.discovery import Kind
from shared.discovery.rhythm import LEASE_S
from tests.fakes.redis_sentinels import PASSWORD, Sentinels
from tests.fakes.redis_server import RedisServer, redis_server

POLL_S = 0.1
# Nothing that is measured takes nearly as long.
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    workers: int = 1000
    schedulers: int = 100
    routers: int = 20
    # Number of parts that join one by one, and are killed together later.
    joining: int = 10
    # How long the steady state is measured, and for how long parts join.
    seconds: float = 20.0

    @property
    def registered(self) -> dict[Kind, int]:
        return {Kind.WORKER: self.workers, Kind.SCHEDULER: self.schedulers, Kind.ROUTER: self.routers}


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of Redis and of the parts at one moment."""

    at: float
    redis_seconds: float
    scripts: int
    sent_bytes: int
    received_bytes: int
    parts_seconds: float
    probe_seconds: float


class Store(Protocol):
    """Redis, as the benchmark reaches it."""

    @property
    def options(self) -> Sequence[str]:
        """Returns the options that tell a part where Redis is."""
        ...

    def server(self) -> RedisServer | None:
        """Returns the primary; None if there is none now, or two."""
        ...


@dataclass(frozen=True, slots=True)
class OneServer:
    """See `Store`."""

    redis: RedisServer

    @property
    def options(self) -> Sequence[str]:
        return ("--redis", self.redis.url)

    def server(self) -> RedisServer:
        return self.redis


@dataclass(frozen=True, slots=True)
class Watched:
    """See `Store`. A primary and a replica, and three Sentinels."""

    sentinels: Sentinels

    @property
    def options(self) -> Sequence[str]:
        return ("--redis", self.sentinels.url, "--redis-sentinel-password", PASSWORD)

    def server(self) -> RedisServer | None:
        primaries = self.sentinels.primaries()
        return primaries[0] if len(primaries) == 1 else None


class Fleet:
    """Processes that hold the parts of a shape. The last scheduler, the probe, has a process of its own, so that its
    CPU time is that of one part."""

    def __init__(self, shape: Shape, store: Store, stack: ExitStack) -> None:
        self.shape = shape
        self.store = store
        half, rest = shape.workers // 2, shape.workers - shape.workers // 2
        schedulers = (shape.schedulers - 1) // 2
        others = shape.schedulers - 1 - schedulers
        start = stack.enter_context
        self.probe = start(MemberProcess(store.options, [(Kind.SCHEDULER, shape.schedulers - 1, 1)]))
        self.processes = [
            self.probe,
            start(
                MemberProcess(
                    store.options,
                    [(Kind.WORKER, 0, half), (Kind.SCHEDULER, 0, schedulers), (Kind.ROUTER, 0, shape.routers)],
                )
            ),
            start(
                MemberProcess(
                    store.options, [(Kind.WORKER, half, rest), (Kind.SCHEDULER, schedulers, others)], has_gateway=True
                )
            ),
        ]
        self.begin = self.read()

    def reports(self) -> list[Report]:
        return [process.report() for process in self.processes]

    @property
    def changes(self) -> list[Change]:
        return [change for process in self.processes for change in process.changes]

    def know_all(self, more_workers: int = 0) -> bool:
        """Whether every part knows every part that it uses."""
        known = [number for report in self.reports() for number in report.known.values()]
        expected = [self.shape.workers + more_workers] * self.shape.schedulers
        return sorted(known) == sorted([*expected, *[self.shape.schedulers] * self.shape.routers, self.shape.routers])

    def are_fresh(self) -> bool:
        """Whether no part's list is stale: each has been in contact with Redis for a lease."""
        return not any(report.stale for report in self.reports())

    def are_registered(self) -> bool:
        """Whether Redis has a lease of every part."""
        server = self.store.server()
        return server is not None and all(
            server.command("ZCARD", f"quire:{kind}:leases") == number for kind, number in self.shape.registered.items()
        )

    def read(self) -> Reading:
        server = self.store.server()
        assert server is not None
        text = server.command("INFO", "everything")
        assert isinstance(text, dict)
        calls = sum(text[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in text)
        parts = sum(process.processor_seconds() for process in self.processes)
        return Reading(
            time.monotonic(),
            text["used_cpu_sys"] + text["used_cpu_user"],
            calls,
            text["total_net_output_bytes"],
            text["total_net_input_bytes"],
            parts,
            self.probe.processor_seconds(),
        )


@contextmanager
def running_fleet(shape: Shape) -> Iterator[tuple[Fleet, RedisServer]]:
    """Starts a fleet with one Redis."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory, ExitStack() as stack:
        server = stack.enter_context(redis_server(Path(directory)))
        yield Fleet(shape, OneServer(server), stack), server


@contextmanager
def watched_fleet(shape: Shape) -> Iterator[tuple[Fleet, Sentinels]]:
    """Starts a fleet with a primary, a replica and Sentinels."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory, ExitStack() as stack:
        sentinels = Sentinels(Path(directory))
        stack.callback(sentinels.stop)
        until(sentinels.is_watched)
        yield Fleet(shape, Watched(sentinels), stack), sentinels


def until(condition: Callable[[], bool], interval: float = POLL_S) -> float:
    """Waits for a condition. Returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() > start + TIMEOUT_S:
            raise TimeoutError("the fleet did not come to know itself")
        time.sleep(interval)
    return time.monotonic() - start


def seconds_everywhere(
    changes: Sequence[Change], addresses: Sequence[str], since: dict[str, float], *, is_gain: bool
) -> list[float]:
    """Returns, for each address, the seconds from `since` until the last watcher had gained or lost it."""
    last: dict[str, float] = {}
    for change in changes:
        for address in change.gained if is_gain else change.lost:
            last[address] = max(last.get(address, 0.0), change.at)
    return [last[address] - since[address] for address in addresses]


def rates(name: str, before: Reading, after: Reading) -> dict[str, float]:
    seconds = after.at - before.at
    return {
        f"{name}_redis_busy_percent": 100 * (after.redis_seconds - before.redis_seconds) / seconds,
        f"{name}_calls_per_s": (after.scripts - before.scripts) / seconds,
        f"{name}_redis_sends_bytes_per_s": (after.sent_bytes - before.sent_bytes) / seconds,
        f"{name}_redis_receives_bytes_per_s": (after.received_bytes - before.received_bytes) / seconds,
        f"{name}_parts_busy_percent": 100 * (after.parts_seconds - before.parts_seconds) / seconds,
        f"{name}_one_scheduler_busy_percent": 100 * (after.probe_seconds - before.probe_seconds) / seconds,
    }


def loss_of_data(name: str, fleet: Fleet, lose: Callable[[], None]) -> dict[str, float]:
    """Empties Redis. Measures the seconds until it has every part again, what Redis and the parts do until then, the
    seconds until no list is stale, and the number of parts that lists have lost. `lose` returns once Redis, empty,
    accepts connections."""
    fleet.reports()
    num_changes = len(fleet.changes)
    lose()
    before, began = fleet.read(), time.monotonic()
    until(fleet.are_registered, 0.02)
    registered_s = time.monotonic() - began
    figures = rates(name, before, fleet.read())
    # All lists have become stale by then: each part asks for its list about every second.
    time.sleep(max(0.0, began + 3.0 - time.monotonic()))
    until(fleet.are_fresh)
    return figures | {
        f"{name}_registered_again_s": registered_s,
        f"{name}_lists_fresh_again_s": time.monotonic() - began,
        f"{name}_parts_forgotten": sum(len(change.lost) for change in fleet.changes[num_changes:]),
    }


def cold_start(fleet: Fleet) -> dict[str, float]:
    """Measures from the start of the first part, and of the last one, until every part knows all that it uses, and what
    Redis and the parts do until then."""
    until(fleet.know_all)
    figures = rates("cold_start", fleet.begin, fleet.read())
    joined = [at for process in fleet.processes for at in process.report().joined_at.values()]
    complete_at = max(change.at for change in fleet.changes)
    figures |= {"cold_start_s": complete_at - min(joined), "cold_start_from_last_s": complete_at - max(joined)}
    return figures


def steady_state(fleet: Fleet) -> dict[str, float]:
    until(fleet.are_fresh)
    before = fleet.read()
    time.sleep(fleet.shape.seconds)
    return rates("steady", before, fleet.read())


def joins_and_deaths(fleet: Fleet) -> dict[str, float]:
    """Workers join one by one, and are all killed at one moment."""
    shape = fleet.shape
    addresses = [address_of(Kind.WORKER, shape.workers + index) for index in range(shape.joining)]
    joining_parts = [(Kind.WORKER, shape.workers, shape.joining)]
    before = fleet.read()
    with MemberProcess(fleet.store.options, joining_parts, pause=shape.seconds / shape.joining) as joining:
        until(lambda: fleet.know_all(shape.joining))
        figures = rates("joining", before, fleet.read())
        joined_at = joining.report().joined_at
        times = seconds_everywhere(fleet.changes, addresses, joined_at, is_gain=True)
        figures |= {"joined_median_s": statistics.median(times), "joined_worst_s": max(times)}
        killed_at = time.monotonic()
    until(fleet.know_all)
    times = seconds_everywhere(fleet.changes, addresses, dict.fromkeys(addresses, killed_at), is_gain=False)
    return figures | {"killed_median_s": statistics.median(times), "killed_worst_s": max(times)}


def failover(name: str, fleet: Fleet, begin: Callable[[], None]) -> dict[str, float]:
    """Lets the replica take over. Measures the seconds until it is the only primary and until every part has renewed
    its lease there, what Redis and the parts do between the two, the seconds until no list is stale, and the number of
    parts that lists have lost."""
    until(fleet.are_fresh)
    old, num_changes = fleet.store.server(), len(fleet.changes)
    began = time.monotonic()
    begin()
    taken_s = until(lambda: fleet.store.server() not in (None, old), 0.02)
    new = fleet.store.server()
    assert new is not None
    before = fleet.read()
    seconds, microseconds = new.time()
    renewed_ms = 1000 * (seconds + LEASE_S) + microseconds / 1000

    def is_renewed() -> bool:
        return fleet.are_registered() and all(
            new.command("ZCOUNT", f"quire:{kind}:leases", "-inf", f"({renewed_ms}") == 0
            for kind in fleet.shape.registered
        )

    until(is_renewed, 0.02)
    renewed_s = time.monotonic() - began
    figures = rates(name, before, fleet.read())
    # All lists that can become stale have become so by then.
    time.sleep(max(0.0, began + 3.0 - time.monotonic()))
    until(fleet.are_fresh)
    return figures | {
        f"{name}_only_primary_s": taken_s,
        f"{name}_all_renewed_s": renewed_s,
        f"{name}_lists_fresh_again_s": time.monotonic() - began,
        f"{name}_parts_forgotten": sum(len(change.lost) for change in fleet.changes[num_changes:]),
    }


def failovers(shape: Shape, *, is_asked: bool = True) -> dict[str, float]:
    """The primary is killed. `is_asked`: before that, an operator asks for a failover."""
    with watched_fleet(shape) as (fleet, sentinels):
        until(fleet.know_all)

        def ask() -> None:
            sentinels.sentinels[0].command("SENTINEL", "FAILOVER", "main", password=PASSWORD)

        def kill() -> None:
            server = fleet.store.server()
            assert server is not None
            server.kill()

        figures = {}
        if is_asked:
            figures = failover("failover", fleet, ask)
            until(sentinels.is_watched)
        return figures | failover("primary_killed", fleet, kill)


def measure(shape: Shape = Shape()) -> dict[str, float]:
    with running_fleet(shape) as (fleet, server):

        def restart() -> None:
            server.kill()
            server.start()

        def flush() -> None:
            server.command("FLUSHALL")

        figures = cold_start(fleet) | steady_state(fleet) | joins_and_deaths(fleet)
        figures |= loss_of_data("restart", fleet, restart) | loss_of_data("flush", fleet, flush)
    return figures | failovers(shape)
