"""Measures how a prompt of 30,000 tokens delays 16 decoding sequences: the time between their tokens while the prompt
is computed. It runs with chunks sized for the target time, and with a token budget that fits the prompt in one step.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.shapes import M15
from benchmarks.stack import parts
from quire.client import AsyncClient

NUM_DECODES = 16
PROMPT_TOKENS = 30_000
TARGET_MS = 50.0


async def while_it_is_computed(address: str) -> tuple[list[float], float, list[float]]:
    """Returns the seconds between tokens of the 16 sequences from the long prompt's arrival to its first token, the
    length of that period, and the seconds between tokens before it."""
    chance = random.Random(1)
    times: list[list[float]] = [[] for _ in range(NUM_DECODES)]
    all_decode = asyncio.Event()

    async def decode(client: AsyncClient, seen: list[float]) -> None:
        prompt = [chance.randrange(3, 8000) for _ in range(100)]
        async for delta in client.stream_generate(prompt, max_tokens=20_000, temperature=0, ignore_eos=True):
            seen += [time.perf_counter()] * len(delta.token_ids)
            if min(map(len, times)) >= 100:
                all_decode.set()

    async with AsyncClient(address) as client:
        decodes = [asyncio.create_task(decode(client, seen)) for seen in times]
        prompt = [chance.randrange(3, 8000) for _ in range(PROMPT_TOKENS)]
        ready = asyncio.create_task(all_decode.wait())
        await asyncio.wait([ready, *decodes], return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), "a sequence ended too early"
        start = time.perf_counter()
        async for _ in client.stream_generate(prompt, max_tokens=2, temperature=0, ignore_eos=True):
            break
        end = time.perf_counter()
        await asyncio.sleep(0.2)
        for task in decodes:
            task.cancel()
        await asyncio.gather(*decodes, return_exceptions=True)
    before = [float(gap) for seen in times for gap in np.diff([t for t in seen[16:] if t < start])]
    # Include the gap in which the prompt ends: it is the longest one if the prompt takes one step.
    meanwhile = []
    for seen in times:
        meanwhile += [b - a for a, b in pairwise(seen) if b > start and a < end]
    return meanwhile, end - start, before


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        model = M15.write(Path(directory))
        for name, worker, scheduler in (
            ("chunked", (), ("--target-tbt-ms", str(TARGET_MS))),
            ("one_step", ("--max-num-batched-tokens", "32768"), ("--max-num-batched-tokens", "32768")),
        ):
            with parts(*model, *worker, scheduler_arguments=scheduler) as running:
                meanwhile, seconds, before = asyncio.run(while_it_is_computed(running.grpc))
            figures |= {
                f"{name}_p50_ms": 1e3 * float(np.percentile(meanwhile, 50)),
                f"{name}_p99_ms": 1e3 * float(np.percentile(meanwhile, 99)),
                f"{name}_max_ms": 1e3 * max(meanwhile),
                f"{name}_before_p50_ms": 1e3 * float(np.percentile(before, 50)),
                f"{name}_before_p99_ms": 1e3 * float(np.percentile(before, 99)),
                f"{name}_long_prompt_s": seconds,
            }
    return figures | {"chunked_p99_over_target": figures["chunked_p99_ms"] / TARGET_MS}
