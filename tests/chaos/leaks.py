"""What must not be left when all calls have ended: sequences, KV blocks, descriptors, processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc

from benchmarks.soak.figures import Figures, Identity, Load, alive, figures, load
from benchmarks.soak.verdict import MAX_ADDED_DESCRIPTORS
from tests.chaos.fleet import Fleet
from tests.chaos.member import Kind
from tests.fakes.waiting import HANG_S

_KINDS: tuple[Kind, ...] = ("gateway", "router", "scheduler", "worker")


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


def grown(fleet: Fleet, before: Mapping[str, Figures], after: Mapping[str, Figures]) -> list[str]:
    """Describes parts with more open descriptors than any part of their kind had before the storm. Parts that were
    started again are compared, too."""
    problems = []
    for kind in _KINDS:
        names = fleet.shape.names(kind)
        bound = max(before[name].descriptors for name in names) + MAX_ADDED_DESCRIPTORS
        problems += [
            f"{name}: {after[name].descriptors} descriptors, at most {bound - MAX_ADDED_DESCRIPTORS} before"
            for name in names
            if after[name].descriptors > bound
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
