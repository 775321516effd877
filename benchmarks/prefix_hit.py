"""Time to first token where the beginning of the prompt is cached, beside a prompt of the rest alone and one of which
nothing is: SmolLM2-135M's shape, through the whole stack.
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
SUFFIX_TOKENS = 64
ROUNDS = 7


async def first_token_s(client: AsyncClient, prompt: list[int]) -> float:
    """One token is all that is asked for, so that nothing is left to compute when the next prompt comes."""
    start = time.perf_counter()
    seconds = 0.0
    async for _ in client.stream_generate(prompt, max_tokens=1, temperature=0, ignore_eos=True):
        seconds = seconds or time.perf_counter() - start
    return seconds


async def take_turns(address: str, rounds: int) -> dict[str, list[float]]:
    """Seconds by kind of prompt, one of each in turns, so that the machine's moods hit all alike."""
    chance = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(3, 49_000) for _ in range(count)]

    prefix = tokens(PREFIX_TOKENS)
    seconds: dict[str, list[float]] = {"hit": [], "suffix": [], "miss": []}
    async with AsyncClient(address) as client:
        await first_token_s(client, prefix + tokens(SUFFIX_TOKENS))
        await first_token_s(client, tokens(SUFFIX_TOKENS))
        for _ in range(rounds):
            seconds["hit"].append(await first_token_s(client, prefix + tokens(SUFFIX_TOKENS)))
            seconds["suffix"].append(await first_token_s(client, tokens(SUFFIX_TOKENS)))
            seconds["miss"].append(await first_token_s(client, tokens(PREFIX_TOKENS + SUFFIX_TOKENS)))
    return seconds


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds, medians."""
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-") as directory,
        parts(*M135.write(Path(directory))) as running,
    ):
        seconds = asyncio.run(take_turns(running.grpc, rounds))
    hit, suffix, miss = (1e3 * statistics.median(seconds[kind]) for kind in ("hit", "suffix", "miss"))
    return {
        "hit_ms": hit, "suffix_alone_ms": suffix, "miss_ms": miss,
        "hit_over_suffix": hit / suffix, "miss_over_hit": miss / hit,
    }  # fmt: skip
