"""Measures how long streams stand still when a worker or scheduler is killed (SIGKILL), suspended (SIGSTOP) or cut off,
with fake workers and with the bundled model on CPU workers.

A router, two schedulers and four workers; the clients stream from the router. The pause of a stream is the longest gap
between two of its messages since the fault. It is compared with a bound: the time until the loss is noticed and a new
plan is sent, 1.2 times the predicted recomputation, and a step. Fake workers also note when they begin the step that
has a lost sequence, so the time from the fault to this plan is measured by itself. With them, the sequences of the
clients fill 30 % of the seats that are left when a worker or a scheduler is lost.
"""

from __future__ import annotations

import asyncio
import enum
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import grpc
import numpy as np

from benchmarks.pauses.fleet import FIRST_TOKEN_ID, Fleet, Process, Shape, running_fleet
from benchmarks.pauses.streams import Stream, random_prompt, seconds_per_prompt_token, until
from quire.inference.v1 import inference_pb2_grpc
from shared.python_child import HOME

MODEL = str(HOME / "quire" / "models" / "quire-chat")
# From a kill to the new plan.
KILL_S = 0.25
# A worker that sends nothing is given up after max(2 s, 5 x the predicted step), and the scheduler looks every 100 ms.
# A scheduler is given up after max(2 s, 5 x the longest pause that it recently made three times).
SUSPENDED_S, SUSPENDED_STEPS, TICK_S = 2.0, 5, 0.1
RECOMPUTATION = 1.2
# A scheduler gives up one worker in this time (services/scheduler/worker_groups/progress.py), and a router is more
# patient with a scheduler that it gives up again within this time (shared/pulse.py).
GIVE_UP_PAUSE_S = 10.5
# Tokens of each stream before the fault, and messages after it, more than are on their way when the fault comes.
TOKENS_BEFORE, MESSAGES_AFTER = 20, 10


class How(enum.Enum):
    """What happens to a part."""

    KILLED = "killed"
    SUSPENDED = "suspended"
    # Its links pass no byte, although all connections stay open.
    CUT_OFF = "cut_off"
    # The same for those to its workers alone. So it is silent to nobody, and hears nothing from any of its workers.
    CUT_OFF_FROM_WORKERS = "cut_off_from_workers"


@dataclass(frozen=True, slots=True)
class Fault:
    """`part`: worker or scheduler."""

    part: str
    how: How

    @property
    def is_silent(self) -> bool:
        """Whether the part only sends nothing, and no connection ends."""
        return self.how is not How.KILLED

    @property
    def name(self) -> str:
        return f"{self.part}_{self.how.value}"


FAULTS = tuple(Fault(part, how) for how in (How.KILLED, How.SUSPENDED) for part in ("worker", "scheduler"))
# They need a fleet with links.
CUTS = (Fault("worker", How.CUT_OFF), Fault("scheduler", How.CUT_OFF), Fault("scheduler", How.CUT_OFF_FROM_WORKERS))


@dataclass(frozen=True, slots=True)
class Load:
    """`num_streams`: at a time. `max_tokens`: so many that no stream ends before the longest pause is over."""

    num_streams: int
    max_tokens: int


FAKES, BUNDLED = Load(16, 2000), Load(8, 1800)
# With these seats, 16 sequences are 30 % of those of the two workers that are left when a scheduler is lost, and the 8
# of a scheduler are 30 % of those of its other worker.
FAKE_MAX_NUM_SEQS = 27


@dataclass(frozen=True, slots=True)
class Pause:
    """Of one affected stream: its longest gap, and the longest one that is allowed."""

    seconds: float
    bound: float


@dataclass(slots=True)
class Found:
    """What one or more faults did. `plans`: seconds from the fault until a worker began the step that has a lost
    sequence, for each sequence; empty without fake workers."""

    pauses: list[Pause] = field(default_factory=list)
    plans: list[float] = field(default_factory=list)


def bound(fault: Fault, step: float, num_tokens: float, per_token: float) -> float:
    """Returns the longest pause that is allowed. `num_tokens`: that a surviving worker must compute again."""
    noticed = KILL_S
    if fault.is_silent:
        noticed += max(SUSPENDED_S, SUSPENDED_STEPS * step) + TICK_S
    return noticed + RECOMPUTATION * num_tokens * per_token + step


def usual_step(streams: Sequence[Stream], moment: float) -> float:
    """Returns the median time between two messages before `moment`."""
    gaps = [b - a for one in streams for a, b in zip(one.times, one.times[1:], strict=False) if b < moment]
    return statistics.median(gaps)


async def play(
    fleet: Fleet,
    stub: inference_pb2_grpc.InferenceServiceAsyncStub,
    fault: Fault,
    number: int,
    load: Load,
    per_token: float,
) -> Found:
    """Plays one fault under streams. Returns what it did to the affected ones, and leaves the fleet whole."""
    parts = fleet.schedulers if fault.part == "scheduler" else fleet.workers
    index = number % len(parts)
    victim = parts[index]
    streams, tasks = await _begin(fleet, stub, load)
    # Not all faults come at the same moment of a step.
    await asyncio.sleep(0.1 + 0.013 * (number % 7))
    affected = await _streams_of(fleet, fault, index, victim, streams)
    num_lost_tokens = sum(stream.num_tokens for stream in streams) / len(streams) * affected
    moment = time.monotonic()
    for process in _struck(fleet, victim, fault):
        process.signal(signal.SIGSTOP if fault.is_silent else signal.SIGKILL)
    await until(lambda: all(stream.num_since(moment) >= MESSAGES_AFTER for stream in streams))
    plans = [at - moment for at in fleet.plans_since(moment)] if fleet.has_fakes else []
    await _cancel(tasks)
    await asyncio.to_thread(_mend, fleet, victim, fault)
    num_survivors = fleet.shape.workers // fleet.shape.schedulers if fault.part == "scheduler" else 1
    num_tokens = (num_lost_tokens + affected * len(random_prompt())) / num_survivors
    step = usual_step(streams, moment)
    longest = sorted((stream.longest_gap(moment) for stream in streams), reverse=True)[:affected]
    return Found([Pause(gap, bound(fault, step, num_tokens, per_token)) for gap in longest], plans)


def _have_begun(streams: list[Stream]) -> bool:
    return all(stream.num_tokens >= TOKENS_BEFORE for stream in streams)


async def _begin(
    fleet: Fleet, stub: inference_pb2_grpc.InferenceServiceAsyncStub, load: Load
) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    """Returns streams that have received their first tokens, divided among the schedulers."""
    while True:
        streams = [Stream() for _ in range(load.num_streams)]
        tasks = [asyncio.create_task(stream.run(stub, random_prompt(), load.max_tokens)) for stream in streams]
        await until(partial(_have_begun, streams))
        if await asyncio.to_thread(fleet.is_balanced, load.num_streams):
            return streams, tasks
        await _cancel(tasks)
        await asyncio.sleep(0.5)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raises the error of a stream that has failed."""
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _streams_of(fleet: Fleet, fault: Fault, index: int, victim: Process, streams: Sequence[Stream]) -> int:
    """Returns the number of streams on the victim. The tokens of fake workers say it. The sequences of a CPU worker
    cannot be counted from outside: they are spread evenly."""
    if fault.part == "scheduler":
        return int((await asyncio.to_thread(fleet.load, victim)).num_running)
    if fleet.has_fakes:
        return sum(stream.token_id == FIRST_TOKEN_ID + index for stream in streams)
    return len(streams) // fleet.shape.workers


def _struck(fleet: Fleet, victim: Process, fault: Fault) -> list[Process]:
    """Returns the processes that are killed or suspended."""
    if fault.how is How.CUT_OFF:
        return fleet.links_of(victim)
    return fleet.links_from(victim) if fault.how is How.CUT_OFF_FROM_WORKERS else [victim]


def _mend(fleet: Fleet, victim: Process, fault: Fault) -> None:
    if fault.is_silent:
        for process in _struck(fleet, victim, fault):
            process.signal(signal.SIGCONT)
    else:
        victim.kill()
        victim.start()
    fleet.wait_whole()


def figures_of(name: str, found: Found) -> dict[str, float]:
    pauses = found.pauses
    gaps = [pause.seconds for pause in pauses]
    within = sum(pause.seconds <= pause.bound for pause in pauses)
    plans = (
        {
            f"{name}_plan_median_ms": 1e3 * statistics.median(found.plans),
            f"{name}_plan_p99_ms": 1e3 * float(np.percentile(found.plans, 99)),
        }
        if found.plans
        else {}
    )
    return {
        f"{name}_streams": len(pauses),
        f"{name}_median_ms": 1e3 * statistics.median(gaps),
        f"{name}_worst_ms": 1e3 * max(gaps),
        f"{name}_median_bound_ms": 1e3 * statistics.median(pause.bound for pause in pauses),
        f"{name}_within_bound_percent": 100 * within / len(pauses),
    } | plans


async def _measure(prefix: str, shape: Shape, model: str, load: Load, rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with running_fleet(shape, model) as fleet:
        async with grpc.aio.insecure_channel(fleet.routers[0].address) as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
            per_token = await seconds_per_prompt_token(stub, 1000, 5)
            figures[f"{prefix}_rounds"] = rounds
            figures[f"{prefix}_recomputation_us_per_token"] = 1e6 * per_token
            for fault in CUTS if shape.has_links else FAULTS:
                found = Found()
                for number in range(rounds):
                    one = await play(fleet, stub, fault, number, load, per_token)
                    found.pauses += one.pauses
                    found.plans += one.plans
                    if fault.is_silent and number + 1 < rounds:
                        await asyncio.sleep(GIVE_UP_PAUSE_S)
                figures |= figures_of(f"{prefix}_{fault.name}", found)
    return figures


def measure(rounds: int = 20) -> dict[str, float]:
    shape = Shape(max_num_seqs=FAKE_MAX_NUM_SEQS)
    return (
        asyncio.run(_measure("fakes", shape, "", FAKES, rounds))
        | asyncio.run(_measure("links", replace(shape, has_links=True), "", FAKES, rounds // 2))
        | asyncio.run(_measure("model", Shape(), MODEL, BUNDLED, rounds))
    )
