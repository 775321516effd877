"""Time to first token where the beginning of the prompt is cached, beside a prompt of the rest alone and one of which
nothing is: SmolLM2-135M's shape, through the whole stack.

What a hit still has to do grows with the rest: each of its tokens attends to the 2,000 before it, which is 138 MFLOP a
token beside the 212 of the weights. Only where reading the weights takes longer than computing with them, in a rest of
few tokens, is a hit nearly as fast as the rest alone.
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
    """One token is all that is asked for, so that nothing is left to compute when the next prompt comes."""
    start = time.perf_counter()
    seconds = 0.0
    async for _ in client.stream_generate(prompt, max_tokens=1, temperature=0, ignore_eos=True):
        seconds = seconds or time.perf_counter() - start
    return seconds


async def take_turns(address: str, rounds: int) -> dict[str, float]:
    """Median seconds by kind of prompt, one of each in turns, so that the machine's moods hit all alike."""
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
    """Milliseconds, by tokens after the prefix."""
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-") as directory,
        parts(*M135.write(Path(directory))) as running,
    ):
        seconds = asyncio.run(take_turns(running.grpc, rounds))
    figures = {f"{name}_ms": 1e3 * value for name, value in seconds.items()}
    for count in SUFFIX_TOKENS:
        figures[f"hit_over_alone_{count}"] = seconds[f"hit_{count}"] / seconds[f"alone_{count}"]
    return figures | {"miss_over_hit_64": seconds["miss_64"] / seconds["hit_64"]}
