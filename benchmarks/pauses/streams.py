"""Streams of clients on a router, with the time of each token."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.client.options import generate_request
from quire.inference.v1 import inference_pb2_grpc

NUM_PROMPT_TOKENS = 200


@dataclass(slots=True)
class Stream:
    """`times`: when each message with tokens came, in monotonic seconds."""

    times: list[float] = field(default_factory=list)
    num_tokens: int = 0
    # The token that came last.
    token_id: int = -1

    async def run(self, stub: inference_pb2_grpc.InferenceServiceAsyncStub, prompt: list[int], max_tokens: int) -> None:
        request = generate_request("", prompt, {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True})
        async for response in stub.Generate(request):
            if response.delta.token_ids:
                self.times.append(time.monotonic())
                self.num_tokens += len(response.delta.token_ids)
                self.token_id = response.delta.token_ids[-1]

    def num_since(self, moment: float) -> int:
        return sum(at > moment for at in self.times)

    def longest_gap(self, moment: float) -> float:
        """Returns the seconds of the longest gap that had not ended at `moment`."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False) if b > moment), default=0.0)


def random_prompt(length: int = NUM_PROMPT_TOKENS) -> list[int]:
    """Returns token ids that no prefix cache knows, and that every tokenizer here has."""
    return [random.randrange(10, 400) for _ in range(length)]


async def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing announces the condition
            await asyncio.sleep(0.02)


async def seconds_per_prompt_token(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub, length: int, rounds: int
) -> float:
    """Returns what each further prompt token adds to the time to first token on an idle fleet."""

    async def to_first_token(num_tokens: int) -> float:
        stream, start = Stream(), time.monotonic()
        await stream.run(stub, random_prompt(num_tokens), 1)
        return stream.times[0] - start

    def median(seconds: list[float]) -> float:
        return sorted(seconds)[len(seconds) // 2]

    long = median([await to_first_token(length) for _ in range(rounds)])
    short = median([await to_first_token(8) for _ in range(rounds)])
    return max(0.0, long - short) / (length - 8)
