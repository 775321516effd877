"""Compares continuous with static batching: the same requests on the same worker, in steps that the real core plans.
A static batch starts when all sequences of the previous batch have ended.

Lengths are chat-like (kv_memory.py). Publications report factors of 2 to 5.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from itertools import islice
from pathlib import Path

from benchmarks.direct import DirectCaller, Timing, random_request
from benchmarks.kv_memory import sharegpt
from benchmarks.shapes import M15
from benchmarks.stack import lone_worker
from services.scheduler.worker_request import WorkerRequest

NUM_REQUESTS = 128
BATCH = 16
MAX_TOKENS = 1024
ROUNDS = 3


def requests(seed: int) -> list[WorkerRequest]:
    chance = random.Random(seed)
    return [
        random_request((seed, key), num_prompt, min(num_output, MAX_TOKENS), chance)
        for key, (num_prompt, num_output) in enumerate(islice(sharegpt(), NUM_REQUESTS))
    ]


def measure() -> dict[str, float]:
    """Returns output tokens per second. Both kinds of batching have the same limit of sequences per step."""
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-") as directory,
        lone_worker(*M15.write(Path(directory))) as at,
    ):
        caller = DirectCaller(at, run_ahead=2, max_num_seqs=BATCH)
        caller.run(requests(1)[:BATCH])  # warm
        continuous, static = [], []
        for round_number in range(ROUNDS):  # alternately
            continuous.append(rate([caller.run(requests(2 + 2 * round_number))]))
            one_by_one = requests(3 + 2 * round_number)
            batches = [one_by_one[start : start + BATCH] for start in range(0, NUM_REQUESTS, BATCH)]
            static.append(rate([caller.run(batch) for batch in batches]))
        caller.close()
    return {
        "continuous_tokens_per_s": statistics.median(continuous),
        "static_tokens_per_s": statistics.median(static),
        "continuous_over_static": statistics.median(continuous) / statistics.median(static),
    }


def rate(timings: list[Timing]) -> float:
    return sum(timing.tokens for timing in timings) / sum(timing.whole_s for timing in timings)
