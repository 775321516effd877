"""Measures the cost of preemption: the same requests with half of the KV blocks that they need, in each preemption
mode, and with enough blocks for all.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path

from benchmarks.direct import DirectCaller, random_request
from benchmarks.shapes import M135
from benchmarks.stack import lone_worker
from services.scheduler.core.config import PreemptionMode
from services.scheduler.worker_request import WorkerRequest

NUM_REQUESTS = 16
PROMPT_TOKENS = 300
OUTPUT_TOKENS = 200
# Fraction of the blocks that all requests need at their full length.
MEMORY_SHARE = 0.5
ROUNDS = 3


def requests(seed: int) -> list[WorkerRequest]:
    chance = random.Random(seed)
    return [random_request((seed, key), PROMPT_TOKENS, OUTPUT_TOKENS, chance) for key in range(NUM_REQUESTS)]


def measure() -> dict[str, float]:
    blocks_each = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // 16)
    few = int(MEMORY_SHARE * NUM_REQUESTS * blocks_each)
    ways = {
        "enough_memory": (PreemptionMode.RECOMPUTE, 2 * few),
        **{mode.value: (mode, few) for mode in PreemptionMode},
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    preemptions = {}
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-") as directory,
        lone_worker(*M135.write(Path(directory)), "--swap-space", "1") as at,
    ):
        for round_number in range(1 + ROUNDS):
            for name, (mode, num_blocks) in ways.items():
                caller = DirectCaller(
                    at, run_ahead=2, num_blocks=num_blocks, preemption_mode=mode, max_model_len=16 * blocks_each,
                    enable_prefix_caching=False,
                )  # fmt: skip
                timing = caller.run(requests(1))
                caller.close()
                if round_number:  # the first round is a warm-up
                    rates[name].append(timing.tokens / timing.whole_s)
                preemptions[name] = caller.counters.preemptions
    figures = {f"{name}_tokens_per_s": statistics.median(every) for name, every in rates.items()}
    return figures | {f"{name}_preemptions": count for name, count in preemptions.items()}
