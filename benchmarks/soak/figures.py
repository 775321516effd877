"""What the parts hold: read from /proc, children included, and from the scheduler's own count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.abuse.memory import resident, tree
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one part, summed over its process and that process's children."""

    # What children share with their parents counts for each of them. 0: the part has ended.
    resident_bytes: int
    # Open file descriptors, sockets among them.
    descriptors: int
    sockets: int
    threads: int
    # Children that have ended and were not waited for included.
    processes: int


@dataclass(frozen=True, slots=True)
class Load:
    """Of the scheduler, as it says itself."""

    used_blocks: int
    blocks: int
    running: int
    waiting: int

    @property
    def is_idle(self) -> bool:
        return not (self.used_blocks or self.running or self.waiting)


@dataclass(frozen=True, slots=True)
class Point:
    """A quiet point: nothing is asked, and the answers to everything that was have ended."""

    # Seconds since the beginning, and requests answered until then, rows of the abuse included.
    seconds: float
    requests: int
    parts: Mapping[str, Figures]
    load: Load


@dataclass(frozen=True, slots=True)
class Identity:
    """A process. A later one may have the same id, but not the same start."""

    pid: int
    # Clock ticks since the machine's start.
    start: int


def figures(pid: int) -> Figures:
    descriptors = sockets = threads = 0
    processes = tree(pid)
    for process in processes:
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            threads += len(os.listdir(f"/proc/{process}/task"))
            for link in Path(f"/proc/{process}/fd").iterdir():
                descriptors += 1
                with contextlib.suppress(OSError):
                    sockets += os.readlink(link).startswith("socket:")
    # The process itself is not counted where it has ended, even if its children live on.
    resident_mb = sum(map(resident, processes)) if resident(pid) else 0.0
    return Figures(round(resident_mb * 1e6), descriptors, sockets, threads, len(processes))


async def load(scheduler: str) -> Load:
    """`scheduler`: its gRPC address."""
    async with grpc.aio.insecure_channel(scheduler) as channel:
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        found = (await stub.GetStats(scheduler_pb2.GetStatsRequest(), wait_for_ready=True)).load
    return Load(found.num_used_blocks, found.num_blocks, found.num_running, found.num_waiting)


def identities(pids: Iterable[int]) -> set[Identity]:
    """The processes with these ids and all that they started."""
    return {Identity(one, state[1]) for pid in pids for one in tree(pid) if (state := _state(one)) is not None}


def alive(processes: Iterable[Identity]) -> set[Identity]:
    """Those that have not ended."""
    return {one for one in processes if (state := _state(one.pid)) is not None and state == (True, one.start)}


def _state(pid: int) -> tuple[bool, int] | None:
    """Whether it runs, or only waits to be waited for; and its start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Fields 3 and 22 of proc(5); the name, field 2, may have spaces.
    return fields[0] not in "ZX", int(fields[19])
