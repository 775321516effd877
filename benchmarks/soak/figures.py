"""Resources that the parts hold, read from /proc (children included) and from the scheduler's statistics."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.abuse.memory import resident, resident_together, tree
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc


@dataclass(frozen=True, slots=True)
class Figures:
    """Resources of one part, summed over its process and the process's descendants."""

    # Of the part and its children; what they share counts once. 0: the part has ended.
    resident_bytes: int
    # Open file descriptors, sockets included.
    descriptors: int
    sockets: int
    threads: int
    # Zombies included.
    processes: int


@dataclass(frozen=True, slots=True)
class Load:
    """The scheduler's load, from its GetStats."""

    used_blocks: int
    blocks: int
    running: int
    waiting: int

    @property
    def is_idle(self) -> bool:
        return not (self.used_blocks or self.running or self.waiting)


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements at a quiet point, when no request is running and none is sent."""

    # Seconds since the start, and number of requests so far, rows of the abuse included.
    seconds: float
    requests: int
    parts: Mapping[str, Figures]
    load: Load


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a process. A later process may have the same id, but not the same start time."""

    pid: int
    # Start time in clock ticks since the machine's boot.
    start: int


def figures(pid: int) -> Figures:
    descriptors = sockets = threads = 0
    processes = tree(pid)
    for process in processes:
        # The process may end meanwhile.
        with contextlib.suppress(OSError):
            threads += len(os.listdir(f"/proc/{process}/task"))
            for link in Path(f"/proc/{process}/fd").iterdir():
                descriptors += 1
                with contextlib.suppress(OSError):
                    sockets += os.readlink(link).startswith("socket:")
    # If the part's own process has ended, report 0, even if its children are alive.
    resident_mb = resident_together(processes) if resident(pid) else 0.0
    return Figures(round(resident_mb * 1e6), descriptors, sockets, threads, len(processes))


async def load(scheduler: str) -> Load:
    """Reads the scheduler's load. `scheduler`: its gRPC address."""
    async with grpc.aio.insecure_channel(scheduler) as channel:
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        found = (await stub.GetStats(scheduler_pb2.GetStatsRequest(), wait_for_ready=True)).load
    return Load(found.num_used_blocks, found.num_blocks, found.num_running, found.num_waiting)


def identities(pids: Iterable[int]) -> set[Identity]:
    """Returns the processes with these ids and their descendants."""
    return {Identity(one, state[1]) for pid in pids for one in tree(pid) if (state := _state(one)) is not None}


def alive(processes: Iterable[Identity]) -> set[Identity]:
    """Returns the processes that have not ended."""
    return {one for one in processes if (state := _state(one.pid)) is not None and state == (True, one.start)}


def _state(pid: int) -> tuple[bool, int] | None:
    """Returns whether the process runs (and is no zombie), and its start time. None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Fields 3 and 22 of proc(5); the name, field 2, may have spaces.
    return fields[0] not in "ZX", int(fields[19])
