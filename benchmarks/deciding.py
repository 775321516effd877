"""Measures the scheduler's time per step: `schedule()` + `apply()` on one core, with continuous arrivals, completions,
cache insertions and evictions. Message conversion is timed separately. There is no worker and no socket.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.plan import StepPlan, StepResult
from services.scheduler.core.request import Generate
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.worker_request import WorkerRequest

T = TypeVar("T")

NUM_STEPS = 1500
WARM_UP_STEPS = 500
RUN_AHEAD = 2
TOKEN = 100
SAMPLING = sampling_pb2.SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class Load:
    """Numbers of running and waiting sequences, which stay constant."""

    num_running: int
    num_waiting: int


LOADS = (Load(1, 0), Load(64, 0), Load(256, 0), Load(256, 1000), Load(256, 10_000))


def requests(seed: int) -> Iterator[WorkerRequest]:
    """Yields requests without end. A third begin with one of 20 common prefixes of 512 tokens. Outputs have 20 to 400
    tokens."""
    chance = random.Random(seed)
    commons = [[chance.randrange(50_000) for _ in range(512)] for _ in range(20)]
    key = 0
    while True:
        common = chance.choice(commons) if chance.random() < 1 / 3 else []
        prompt = common + [chance.randrange(50_000) for _ in range(chance.randint(50, 1000))]
        yield WorkerRequest(key, array("I", prompt), Generate(chance.randint(20, 400)), sampling=SAMPLING)
        key += 1


class Clock:
    """Sums the time that each step spends on one kind of work."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._step = 0.0

    def time(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self._step += time.perf_counter() - start
        return result

    def next_step(self) -> None:
        self.seconds.append(self._step)
        self._step = 0.0

    def microseconds(self) -> dict[str, float]:
        seconds = sorted(self.seconds[WARM_UP_STEPS:])
        return {"median": 1e6 * statistics.median(seconds), "p99": 1e6 * seconds[int(0.99 * len(seconds))]}


def measure() -> dict[str, float]:
    """Returns all figures of all loads."""
    figures = {
        f"{name}_{load.num_running}_{load.num_waiting}": value
        for load in LOADS
        for name, value in measure_load(load).items()
    }
    return figures | {"caching_us_per_block": cost_of_caching()}


def measure_load(load: Load) -> dict[str, float]:
    core: Scheduler[WorkerRequest] = Scheduler(
        CoreConfig(
            num_blocks=64 + 80 * load.num_running, block_size=16, max_num_seqs=load.num_running,
            max_num_batched_tokens=max(2048, load.num_running), max_model_len=2048, max_num_queued_reqs=100_000,
        )
    )  # fmt: skip
    supply = requests(1)
    deciding, converting = Clock(), Clock()
    results: list[bytes] = []
    while len(deciding.seconds) < WARM_UP_STEPS + NUM_STEPS:
        while core.num_waiting < load.num_waiting or core.num_running + core.num_waiting < load.num_running:
            core.submit(next(supply))
        while len(results) < RUN_AHEAD and (plan := deciding.time(core.schedule)) is not None:
            converting.time(partial(_encode, plan))
            results.append(_answer(plan))
        result = converting.time(lambda: result_from_proto(worker_pb2.StepResult.FromString(results.pop(0))))
        deciding.time(partial(core.apply, result))
        deciding.next_step()
        converting.next_step()
    figures = {f"deciding_{name}_us": value for name, value in deciding.microseconds().items()}
    figures |= {f"converting_{name}_us": value for name, value in converting.microseconds().items()}
    counters = core.counters
    return figures | {
        "hit_share": counters.prefix_cache_hits / counters.prefix_cache_queries,
        "preemptions_per_step": counters.preemptions / counters.steps,
    }


def _encode(plan: StepPlan[WorkerRequest]) -> bytes:
    return plan_to_proto(plan, epoch=1).SerializeToString()


def _answer(plan: StepPlan[WorkerRequest]) -> bytes:
    """Returns a worker's answer: a token for each row that samples."""
    tokens = array("I", [TOKEN]) * len(plan.sampling_wire_ids)
    return worker_pb2.StepResult(
        step_id=plan.step_id, wire_ids=plan.sampling_wire_ids.tobytes(), token_ids=tokens.tobytes()
    ).SerializeToString()


def cost_of_caching(num_prompts: int = 400, num_tokens: int = 2048) -> float:
    """Returns the microseconds per full block that prefix caching adds if nothing is ever found."""

    def seconds(enabled: bool) -> float:
        core: Scheduler[WorkerRequest] = Scheduler(
            CoreConfig(
                num_blocks=2048, block_size=16, max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=4096,
                enable_prefix_caching=enabled,
            )
        )  # fmt: skip
        chance = random.Random(2)
        spent = 0.0
        for key in range(num_prompts):
            prompt = array("I", [chance.randrange(50_000) for _ in range(num_tokens)])
            core.submit(WorkerRequest(key, prompt, Generate(1), sampling=SAMPLING))
            start = time.perf_counter()
            plan = core.schedule()
            assert plan is not None
            core.apply(StepResult(plan.step_id, plan.sampling_wire_ids, [TOKEN] * len(plan.sampling_wire_ids)))
            spent += time.perf_counter() - start
        return spent

    with_it, without = (min(seconds(enabled) for _ in range(3)) for enabled in (True, False))
    return 1e6 * (with_it - without) / (num_prompts * num_tokens // 16)
