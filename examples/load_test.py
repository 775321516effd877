"""Sends many chats concurrently and prints throughput and latencies. `quire bench serve` measures more."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass

from openai import AsyncOpenAI


@dataclass(frozen=True)
class Answer:
    num_tokens: int
    # In seconds.
    to_first_token: float
    total: float


async def ask(client: AsyncOpenAI, model: str, prompt: str, turns: asyncio.Semaphore) -> Answer:
    async with turns:
        start = time.perf_counter()
        first = 0.0
        num_tokens = 0
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=50,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            first = first or time.perf_counter() - start
            if chunk.usage is not None:
                num_tokens = chunk.usage.completion_tokens
        return Answer(num_tokens, first, time.perf_counter() - start)


def percentile(values: list[float], percent: float) -> float:
    """Returns the smallest value that is at least as large as `percent` percent of all values (nearest rank)."""
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]


async def run(url: str, num_requests: int, concurrency: int) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = (await client.models.list()).data[0].id
        turns = asyncio.Semaphore(concurrency)
        start = time.perf_counter()
        prompts = [f"Count from {number} to {number + 20}." for number in range(num_requests)]
        answers = await asyncio.gather(*(ask(client, model, prompt, turns) for prompt in prompts))
        seconds = time.perf_counter() - start

    num_tokens = sum(answer.num_tokens for answer in answers)
    print(f"{num_requests} requests, {concurrency} at a time, in {seconds:.2f} s")
    print(f"throughput: {num_requests / seconds:.1f} requests/s, {num_tokens / seconds:.1f} tokens/s")
    for name, values in (
        ("time to first token", [answer.to_first_token for answer in answers]),
        ("latency", [answer.total for answer in answers]),
    ):
        median, high = (1000 * percentile(values, percent) for percent in (50, 99))
        print(f"{name}: P50 {median:.0f} ms, P99 {high:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=8)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.url, arguments.requests, arguments.concurrency))


if __name__ == "__main__":
    main()
