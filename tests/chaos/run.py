"""A storm: the calm phase, the drawn faults under load, and the check of what is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import leaks
from tests.chaos.draw import Round
from tests.chaos.fleet import Shape
from tests.chaos.nemesis import LastRelease, Nemesis
from tests.chaos.stage import Stage, staged

# Number of times that each request is sent in the calm phase, and after the storm.
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    rounds: Iterable[Round]
    # Seconds after which no further round begins. None: the rounds end by themselves.
    seconds: float | None = None
    clients: int = 10
    # The last release, if there is one.
    last_release: LastRelease | None = None


@dataclass(frozen=True, slots=True)
class Result:
    # Descriptions of resources that are left over; None: that is not known.
    leaks: list[str] | None
    seconds: float


async def run(shape: Shape, plan: Plan, history: Path, show: Callable[[str], None]) -> Result:
    """Starts a fleet, carries out the plan's faults under load, and stops the fleet. Writes the history to a file.
    `show`: prints a line of progress."""
    async with staged(shape, history, show) as stage:
        await _phases(stage, plan)
    return Result(stage.leaks, stage.clock())


async def _phases(stage: Stage, plan: Plan) -> None:
    fleet, load = stage.fleet, stage.load
    await stage.send_each(_REPEATS, plan.clients)
    stage.leaks += await leaks.held(fleet)
    before, num_before = leaks.resources(fleet), load.num_sent
    stage.say("the fault-free answers are known")
    load.phase = "storm"
    is_over = False
    clients = [
        asyncio.create_task(load.run_client(stage.requests, random.Random(f"{plan.seed} {number}"), lambda: is_over))
        for number in range(plan.clients)
    ]
    try:
        nemesis = Nemesis(fleet, stage.clock, stage.recorder.add, stage.show, plan.last_release)
        await nemesis.carry_out(plan.rounds, plan.seconds)
        await fleet.wait_up()
    finally:
        is_over = True
        await asyncio.gather(*clients)
    load.phase = "after"
    await stage.send_each(_REPEATS, plan.clients)
    stage.leaks += await leaks.held(fleet)
    stage.leaks += await fleet.not_registered()
    stage.leaks += leaks.grown(fleet.shape, before, leaks.resources(fleet), load.num_sent - num_before)
