"""What must not be left when all calls have ended: sequences, KV blocks, descriptors, threads, memory, processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import get_args

import grpc

from benchmarks.soak.figures import Figures, Identity, Load, alive, figures, load
from benchmarks.soak.verdict import (
    ALLOCATOR_BYTES,
    MAX_ADDED_DESCRIPTORS,
    MAX_ADDED_PROCESSES,
    MAX_ADDED_THREADS,
    MAX_BYTES_PER_REQUEST,
)
from tests.chaos.fleet import Fleet, Shape
from tests.chaos.member import Kind
from tests.fakes.waiting import HANG_S


async def held(fleet: Fleet) -> list[str]:
    """Waits until every scheduler is idle, for at most HANG_S. Describes what schedulers still hold then."""
    return [problem for name in fleet.shape.names("scheduler") if (problem := await _held_by(fleet, name))]


async def _held_by(fleet: Fleet, name: str) -> str | None:
    found: Load | str = "does not answer"
    try:
        async with asyncio.timeout(HANG_S):
            while True:
                try:
                    found = await load(fleet.address(name))
                    if found.is_idle:
                        return None
                except grpc.aio.AioRpcError as error:
                    found = f"does not answer: {error.details()}"
                await asyncio.sleep(0.2)
    except TimeoutError:
        return f"{name}: {found}"


def resources(fleet: Fleet) -> dict[str, Figures]:
    """Returns what each part's processes hold now."""
    return {name: figures(member.pid) for name, member in fleet.members.items() if member.pid is not None}


def grown(shape: Shape, before: Mapping[str, Figures], after: Mapping[str, Figures], num_requests: int) -> list[str]:
    """Describes parts that hold more than any part of their kind did before the storm. Parts that were started again
    are compared, too. The bounds are those of benchmarks/soak/verdict.py. `num_requests`: sent in between."""
    added_bytes = ALLOCATOR_BYTES + MAX_BYTES_PER_REQUEST * num_requests
    bounds: tuple[tuple[str, Callable[[Figures], float], float], ...] = (
        ("descriptors", lambda part: part.descriptors, MAX_ADDED_DESCRIPTORS),
        ("threads", lambda part: part.threads, MAX_ADDED_THREADS),
        ("processes", lambda part: part.processes, MAX_ADDED_PROCESSES),
        ("MB of memory", lambda part: part.resident_bytes / 1e6, added_bytes / 1e6),
    )
    problems = []
    for kind in get_args(Kind):
        names = shape.names(kind)
        for what, amount, added in bounds:
            most = max(amount(before[name]) for name in names)
            problems += [
                f"{name}: {amount(after[name]):.0f} {what}, at most {most:.0f} before"
                for name in names
                if name in after and amount(after[name]) > most + added
            ]
    return problems


async def left(processes: set[Identity]) -> list[str]:
    """Waits until the processes have ended, for at most HANG_S. Describes those that have not."""
    try:
        async with asyncio.timeout(HANG_S):
            while alive(processes):  # noqa: ASYNC110 - not all of them are children of this process
                await asyncio.sleep(0.1)
    except TimeoutError:
        return [f"process {one.pid} is still alive" for one in alive(processes)]
    return []
