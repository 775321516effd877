"""Random calls of quire.inference.v1 with the results that they must have."""

from __future__ import annotations

import random
from typing import Any

import grpc

from benchmarks.soak.request import Request, over_grpc
from quire.client.aio import AsyncClient
from quire.client.results import Result

_IDS = list(range(20, 52))


def _texts(result: Result) -> list[Any]:
    return [[choice.text, list(choice.token_ids), str(choice.finish_reason)] for choice in result.choices]


def _conversation(chance: random.Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {chance.randint(1, 7)} plus {chance.randint(1, 7)}?"}]


def _chat(chance: random.Random) -> Request:
    messages, n = _conversation(chance), chance.choice((1, 1, 2))

    async def call(client: AsyncClient) -> list[Any]:
        return _texts(await client.chat(messages, temperature=0, max_tokens=40, n=n))

    return over_grpc("gRPC Chat", call, key=f"{messages} {n}")


def _generate(chance: random.Random) -> Request:
    """Returns a Generate call, whole or streamed, with a seed or greedy."""
    prompt, seed, is_whole = chance.choice(("Once", _IDS)), chance.randint(1, 3), chance.random() < 0.5
    temperature = chance.choice((0.0, 1.0))

    async def call(client: AsyncClient) -> list[Any]:
        if is_whole:
            return _texts(await client.generate(prompt, temperature=temperature, seed=seed, max_tokens=48))
        stream = client.stream_generate(prompt, temperature=temperature, seed=seed, max_tokens=48)
        return _texts(await stream.result())

    return over_grpc("gRPC Generate", call, key=f"{prompt} {temperature} {seed}")


def _left(chance: random.Random) -> Request:
    """Returns a call that cancels a stream after some of its messages."""
    messages, pieces = _conversation(chance), chance.randint(1, 20)

    async def call(client: AsyncClient) -> None:
        async with client.stream_chat(messages, max_tokens=1500, ignore_eos=True) as stream:
            left = pieces
            async for _ in stream:
                left -= 1
                if not left:
                    break

    return over_grpc("gRPC Chat, cancelled", call)


def _small(chance: random.Random) -> Request:
    async def tokens(client: AsyncClient) -> list[int]:
        return list(await client.tokenize("Hello!"))

    async def text(client: AsyncClient) -> str:
        return await client.detokenize([298, 933])

    async def models(client: AsyncClient) -> list[str]:
        return [model.name for model in await client.models()]

    return chance.choice(
        (
            over_grpc("gRPC Tokenize", tokens, key=""),
            over_grpc("gRPC Detokenize", text, key=""),
            over_grpc("gRPC ListModels", models, key=""),
        )
    )


def _invalid(chance: random.Random) -> Request:
    async def call(client: AsyncClient) -> list[Any]:
        return _texts(await client.generate("Once", temperature=9))

    return over_grpc("gRPC, invalid", call, status=grpc.StatusCode.INVALID_ARGUMENT)


GRPC = (_chat, _generate, _left, _small, _invalid)
