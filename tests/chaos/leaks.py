"""What must not be left when all calls have ended: sequences, KV blocks, descriptors, threads, memory, processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import get_args

import grpc

from benchmarks.soak.figures import Figures, Identity, Load, alive, figures, load
from benchmarks.soak.verdict import Growth, excesses
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
    """Describes parts that hold more than any part of their kind did before the storm, by the bounds of the soak test.
    Parts that were started later are compared, too. `num_requests`: sent in between."""
    problems = []
    for kind in get_args(Kind):
        names = shape.names(kind)
        most = _most([before[name] for name in names if name in before])
        for name in names:
            if name in after:
                problems += [f"{name}: {excess}" for excess in excesses(Growth(most, after[name], num_requests))]
    return problems


def _most(parts: Sequence[Figures]) -> Figures:
    """Returns the maximum of each resource."""
    return Figures(**{one.name: max(getattr(part, one.name) for part in parts) for one in fields(Figures)})


async def left(processes: set[Identity]) -> list[str]:
    """Waits until the processes have ended, for at most HANG_S. Describes those that have not."""
    try:
        async with asyncio.timeout(HANG_S):
            while alive(processes):  # noqa: ASYNC110 - not all of them are children of this process
                await asyncio.sleep(0.1)
    except TimeoutError:
        return [f"process {one.pid} is still alive" for one in alive(processes)]
    return []
