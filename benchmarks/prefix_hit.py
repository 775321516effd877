"""Measures the time to first token of a prompt with a cached prefix, of a prompt with only the tokens after the prefix,
and of an uncached prompt, through the whole stack, with SmolLM2-135M's architecture.

The work of a hit grows with the tokens after the prefix: each of them attends to the 2,000 tokens of the prefix, which
takes 138 MFLOP per token, in addition to 212 for the weights. So a hit is nearly as fast as the remaining tokens alone
only if these are few, because then reading the weights takes longer than computing with them.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.shapes import M135
from benchmarks.stack import parts
from quire.client import AsyncClient

PREFIX_TOKENS = 2000
SUFFIX_TOKENS = (4, 16, 64)
ROUNDS = 7


async def first_token_s(client: AsyncClient, prompt: list[int]) -> float:
    """Requests one token only, so that the worker is idle when the next prompt arrives."""
    start = time.perf_counter()
    seconds = 0.0
    async for _ in client.stream_generate(prompt, max_tokens=1, temperature=0, ignore_eos=True):
        seconds = seconds or time.perf_counter() - start
    return seconds


async def take_turns(address: str, rounds: int) -> dict[str, float]:
    """Returns median seconds by kind of prompt. The kinds alternate, so that a noisy machine affects all of them."""
    chance = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(3, 49_000) for _ in range(count)]

    prefix = tokens(PREFIX_TOKENS)
    seconds: dict[str, list[float]] = {}
    async with AsyncClient(address) as client:

        async def measure(name: str, prompt: list[int]) -> None:
            seconds.setdefault(name, []).append(await first_token_s(client, prompt))

        await first_token_s(client, prefix + tokens(16))
        for _ in range(rounds):
            for count in SUFFIX_TOKENS:
                await measure(f"hit_{count}", prefix + tokens(count))
                await measure(f"alone_{count}", tokens(count))
            await measure("miss_64", tokens(PREFIX_TOKENS + 64))
    return {name: statistics.median(every[1:]) for name, every in seconds.items()}


def measure(rounds: int = 1 + ROUNDS) -> dict[str, float]:
    """Returns milliseconds by number of tokens after the prefix, and ratios."""
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-") as directory,
        parts(*M135.write(Path(directory))) as running,
    ):
        seconds = asyncio.run(take_turns(running.grpc, rounds))
    figures = {f"{name}_ms": 1e3 * value for name, value in seconds.items()}
    for count in SUFFIX_TOKENS:
        figures[f"hit_over_alone_{count}"] = seconds[f"hit_{count}"] / seconds[f"alone_{count}"]
    return figures | {"miss_over_hit_64": seconds["miss_64"] / seconds["hit_64"]}
