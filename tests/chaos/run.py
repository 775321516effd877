"""One run: the calm phase, the storm, and the check of what is left."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.cli.runtime_directory import runtime_directory
from tests.chaos import leaks
from tests.chaos.catalog import Request, catalog
from tests.chaos.draw import Round
from tests.chaos.fleet import Fleet, Shape
from tests.chaos.history import Recorder
from tests.chaos.load import Load
from tests.chaos.nemesis import Nemesis

# Name of the directories with a run's sockets, logs and history. Short, because paths of sockets are limited.
PREFIX = "chaos-"


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    rounds: Iterable[Round]
    # Seconds after which no further round begins. None: the rounds end by themselves.
    seconds: float | None = None
    clients: int = 10
    # Number of times that each request is sent in the calm phase, and after the storm.
    repeats: int = 2


@dataclass(frozen=True, slots=True)
class Result:
    # Resources that are left over.
    leaks: list[str]
    seconds: float


async def run(shape: Shape, plan: Plan, history: Path, show: Callable[[str], None]) -> Result:
    """Starts a fleet, carries out the plan's faults under load, and stops the fleet. Writes the history to a file.
    `show`: prints a line of progress."""
    begin = time.monotonic()

    def clock() -> float:
        return time.monotonic() - begin

    with runtime_directory(PREFIX, Path(tempfile.gettempdir())) as directory, Recorder(history) as recorder:
        fleet = Fleet(shape, directory, clock, recorder.add)
        load = Load(fleet.host, fleet.port, clock, recorder.add)
        requests = catalog(shape.model)
        try:
            await fleet.start()
            show(f"{clock():5.0f} s the fleet is up")
            problems = await _phases(fleet, load, requests, plan, clock, recorder, show)
        finally:
            await load.close()
            await fleet.stop()
            for served in fleet.served():
                recorder.add(served)
        problems += await leaks.left(fleet.processes)
    return Result(problems, clock())


async def _phases(
    fleet: Fleet,
    load: Load,
    requests: Sequence[Request],
    plan: Plan,
    clock: Callable[[], float],
    recorder: Recorder,
    show: Callable[[str], None],
) -> list[str]:
    """Runs the three phases. Returns descriptions of what schedulers and parts still hold."""
    await _each(load, requests, plan)
    problems = await leaks.held(fleet)
    before = leaks.resources(fleet)
    show(f"{clock():5.0f} s the fault-free answers are known")
    nemesis = Nemesis(fleet, clock, recorder.add, show)
    load.phase = "storm"
    is_over = False
    clients = [
        asyncio.create_task(load.run_client(requests, random.Random(f"{plan.seed} {number}"), lambda: is_over))
        for number in range(plan.clients)
    ]
    try:
        await nemesis.carry_out(plan.rounds, plan.seconds)
        await fleet.wait_up()
    finally:
        is_over = True
        await asyncio.gather(*clients)
    load.phase = "after"
    await _each(load, requests, plan)
    problems += await leaks.held(fleet)
    return problems + leaks.grown(fleet, before, leaks.resources(fleet))


async def _each(load: Load, requests: Sequence[Request], plan: Plan) -> None:
    """Sends each request `plan.repeats` times, with as many at a time as in the storm."""
    turns = [request for _ in range(plan.repeats) for request in requests]
    random.Random(plan.seed).shuffle(turns)
    places = asyncio.Semaphore(plan.clients)

    async def send(request: Request) -> None:
        async with places:
            await load.send(request)

    await asyncio.gather(*map(send, turns))
