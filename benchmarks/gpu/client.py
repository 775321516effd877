"""A client process that sends requests.

    python -m benchmarks.gpu.client ADDRESS CONCURRENCY REQUESTS INPUT OUTPUT VOCAB SEED

Keeps CONCURRENCY requests of random token ids in progress until REQUESTS are answered. Prints their times as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass

from quire.client.aio import AsyncClient


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one request, in seconds of time.monotonic(), which all processes of a host share."""

    start: float
    first_token: float
    end: float
    tokens: int


async def ask(client: AsyncClient, prompt: list[int], output: int) -> Timing:
    start, first, tokens = time.monotonic(), 0.0, 0
    async for delta in client.stream_generate(prompt, max_tokens=output, temperature=0.0, ignore_eos=True):
        first = first or time.monotonic()
        tokens += len(delta.token_ids)
    return Timing(start, first, time.monotonic(), tokens)


async def run(
    address: str, concurrency: int, requests: int, input_tokens: int, output: int, vocab: int, seed: int
) -> list[Timing]:
    chance = random.Random(seed)
    prompts = [[chance.randrange(3, vocab) for _ in range(input_tokens)] for _ in range(requests)]
    timings: list[Timing] = []

    async def keep_asking(client: AsyncClient) -> None:
        while prompts:
            timings.append(await ask(client, prompts.pop(), output))

    async with AsyncClient(address) as client:
        await asyncio.gather(*(keep_asking(client) for _ in range(concurrency)))
    return timings


def main() -> None:
    address, *numbers = sys.argv[1:]
    timings = asyncio.run(run(address, *map(int, numbers)))
    print(json.dumps([asdict(timing) for timing in timings]))


if __name__ == "__main__":
    main()
