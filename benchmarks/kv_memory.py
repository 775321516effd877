"""Measures the fraction of allocated KV slots that hold tokens, at every step and with plans in flight, for production
lengths and chat-like lengths. Also measures the memory saved by sharing a prompt among choices. The real core plans;
no worker computes.

The figures correspond to Kwon et al., vLLM, SOSP 2023: sections 6.2 (waste) and 6.3 (parallel sampling).
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quire.simulator.traces import read_trace
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.plan import StepPlan, StepResult
from services.scheduler.core.request import Generate, SequenceRequest
from services.scheduler.core.scheduler import Scheduler

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "azure_code_2023.csv"
BLOCK_SIZE = 16
RUN_AHEAD = 2
MAX_MODEL_LEN = 8192
NUM_REQUESTS = 2000

Lengths = Iterator[tuple[int, int]]


@dataclass(slots=True)
class Usage:
    """Sums over the steps of a run, in KV slots (token positions)."""

    block_size: int
    allocated: int = 0
    live: int = 0
    live_in_whole_blocks: int = 0
    reserved: int = 0  # by contiguous allocation for the longest possible sequence
    unshared: int = 0  # sum over the sequences' block tables
    worst_ratio: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def add(self, core: Scheduler[SequenceRequest]) -> None:
        running = core._roster.running
        size = self.block_size
        allocated = core.memory.pool.num_used * size
        live = [min(sequence.num_computed_tokens, len(sequence.token_ids)) for sequence in running]
        in_blocks = sum(-(-count // size) for count in live) * size
        self.allocated += allocated
        self.live += sum(live)
        self.live_in_whole_blocks += in_blocks
        self.reserved += len(running) * MAX_MODEL_LEN
        self.unshared += sum(len(sequence.block_ids) for sequence in running) * size
        if in_blocks:
            self.worst_ratio = max(self.worst_ratio, allocated / in_blocks)


def azure_code() -> Lengths:
    return ((request.num_prompt_tokens, request.num_output_tokens) for request in read_trace(TRACE))


def log_normal(prompt_mean: float, output_mean: float, seed: int = 1) -> Lengths:
    """Yields log-normal lengths with these means, a long-tailed distribution like that of chats."""
    chance = random.Random(seed)
    sigma = 1.0
    while True:
        prompt, output = (
            max(1, round(chance.lognormvariate(0, sigma) * mean / 2.718281828 ** (sigma**2 / 2)))
            for mean in (prompt_mean, output_mean)
        )
        yield min(prompt, 4096), min(output, 4000)


# The means are those in section 6.1 of the paper.
def sharegpt() -> Lengths:
    return log_normal(161.31, 337.99)


def alpaca() -> Lengths:
    return log_normal(19.31, 58.45)


def run(lengths: Lengths, num_requests: int, n: int = 1, block_size: int = BLOCK_SIZE) -> Usage:
    """Runs all requests from a full queue, 64 sequences at a time."""
    core: Scheduler[SequenceRequest] = Scheduler(
        CoreConfig(
            num_blocks=64 * MAX_MODEL_LEN // block_size, block_size=block_size, max_num_seqs=64,
            max_num_batched_tokens=2048, max_model_len=MAX_MODEL_LEN, max_num_queued_reqs=10**6,
        )
    )  # fmt: skip
    usage = Usage(block_size)
    chance = usage.chance
    for key, (num_prompt, num_output) in zip(range(num_requests), lengths, strict=False):
        prompt = array("I", (chance.randrange(50_000) for _ in range(num_prompt)))
        for choice in range(n):
            # Choices of one request end at different lengths.
            max_tokens = max(1, round(num_output * chance.uniform(0.5, 1.5))) if n > 1 else max(1, num_output)
            core.submit(
                SequenceRequest(
                    (key, choice), prompt, Generate(max_tokens), group=key if n > 1 else None, choice_index=choice
                )
            )
    in_flight: deque[StepPlan[SequenceRequest]] = deque()
    while core.num_running + core.num_waiting:
        while len(in_flight) < RUN_AHEAD and (plan := core.schedule()) is not None:
            in_flight.append(plan)
        usage.add(core)
        plan = in_flight.popleft()
        tokens = [chance.randrange(50_000) for _ in plan.sampling_wire_ids]
        core.apply(StepResult(plan.step_id, plan.sampling_wire_ids, tokens))
    return usage


def measure() -> dict[str, float]:
    figures = {}
    mixes = {"sharegpt": sharegpt(), "alpaca": alpaca()}
    if TRACE.exists():
        mixes["azure_code"] = azure_code()
    for name, lengths in mixes.items():
        usage = run(lengths, NUM_REQUESTS)
        figures[f"{name}_waste_percent"] = 100 * (1 - usage.live / usage.allocated)
        figures[f"{name}_waste_contiguous_percent"] = 100 * (1 - usage.live / usage.reserved)
        figures[f"{name}_worst_ratio"] = usage.worst_ratio
    small = run(alpaca(), NUM_REQUESTS, block_size=8)
    figures["alpaca_waste_in_blocks_of_8_percent"] = 100 * (1 - small.live / small.allocated)
    for name, make in (("alpaca", alpaca), ("sharegpt", sharegpt)):
        for n in (2, 4, 6):
            usage = run(make(), NUM_REQUESTS // (2 * n), n)
            figures[f"{name}_saved_by_sharing_n{n}_percent"] = 100 * (1 - usage.allocated / usage.unshared)
    return figures


if __name__ == "__main__":
    for figure, value in measure().items():
        print(f"{figure:40} {value:8.2f}")
