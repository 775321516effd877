"""`python -m benchmarks.discovery.members`: many parts in one process, each with the discovery client that a real part
has: a connection to Redis of its own, a registration that it renews, and a list of the parts that it uses.

Answers each line on standard input with a line of JSON, a Report. SIGKILL ends all parts of the process at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from shared.discovery import DiscoveryOptions, Kind, Parts, Registry, follow, source_of

MODEL = "bench"


def address_of(kind: Kind, index: int) -> str:
    """Returns an address as in a cluster; nothing listens there."""
    return f"10.{list(Kind).index(kind)}.{index // 250}.{index % 250}:50053"


@dataclass(slots=True)
class Watcher:
    """What one part knows of the parts that it uses."""

    name: str
    known: frozenset[str] = frozenset()
    is_stale: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """A watcher's list has changed. `at`: monotonic seconds, which are the same in all processes of a host."""

    at: float
    watcher: str
    gained: list[str]
    lost: list[str]


@dataclass(frozen=True, slots=True)
class Report:
    """`joined_at`: when each part of the process began to register, in monotonic seconds. `changes`: since the last
    report. `known`: number of parts by watcher. `stale`: names of watchers with a stale list."""

    joined_at: dict[str, float]
    changes: list[Change]
    known: dict[str, int]
    stale: list[str]


@dataclass(slots=True)
class Members:
    options: DiscoveryOptions
    joined_at: dict[str, float] = field(default_factory=dict)
    watchers: list[Watcher] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, kind: Kind, index: int) -> None:
        """Starts a part of this kind, with all that it does for discovery."""
        address = address_of(kind, index)
        registry = Registry(self.options, advertise=address)
        registry.join(kind, [address], model="" if kind is Kind.ROUTER else MODEL)
        self.joined_at[address] = time.monotonic()
        if kind is Kind.SCHEDULER:
            self._watch(address, Kind.WORKER, registry)
        elif kind is Kind.ROUTER:
            self._watch(address, Kind.SCHEDULER, registry)

    def add_gateway(self) -> None:
        """Starts a part that finds the routers, and does not register."""
        self._watch("gateway", Kind.ROUTER, Registry(self.options))

    def report(self) -> Report:
        changes, self.changes = self.changes, []
        known = {watcher.name: len(watcher.known) for watcher in self.watchers}
        stale = [watcher.name for watcher in self.watchers if watcher.is_stale]
        return Report(self.joined_at, changes, known, stale)

    def _watch(self, name: str, kind: Kind, registry: Registry) -> None:
        watcher = Watcher(name)
        self.watchers.append(watcher)
        task = asyncio.create_task(follow(source_of([], kind, registry), self._apply_to(watcher)))
        self._tasks.add(task)

    def _apply_to(self, watcher: Watcher) -> Callable[[Parts], None]:
        def apply(parts: Parts) -> None:
            known = parts.addresses
            gained, lost = known - watcher.known, watcher.known - known
            if gained or lost:
                self.changes.append(Change(time.monotonic(), watcher.name, sorted(gained), sorted(lost)))
            watcher.known, watcher.is_stale = known, parts.is_stale

        return apply


async def serve(arguments: argparse.Namespace) -> None:
    members = Members(
        DiscoveryOptions(redis=arguments.redis, redis_sentinel_password=arguments.redis_sentinel_password)
    )
    for kind, (first, count) in (
        (Kind.WORKER, arguments.workers),
        (Kind.SCHEDULER, arguments.schedulers),
        (Kind.ROUTER, arguments.routers),
    ):
        for index in range(first, first + count):
            members.add(kind, index)
            await asyncio.sleep(arguments.pause)
    if arguments.gateway:
        members.add_gateway()
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(members.report())), flush=True)


def _share(text: str) -> tuple[int, int]:
    first, _, count = text.partition(":")
    return int(first), int(count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.discovery.members", description=__doc__)
    parser.add_argument("--redis", required=True, help="URL of Redis")
    parser.add_argument("--redis-sentinel-password", default="", help="password of the Sentinels")
    for kind in Kind:
        parser.add_argument(f"--{kind}s", type=_share, default=(0, 0), help="index of the first, and number")
    parser.add_argument("--gateway", action="store_true", help="find the routers, too")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between the starts of two parts")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
