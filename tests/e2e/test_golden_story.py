"""The published greedy story of stories260K, character for character, by every way in, alone and in a crowd."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from quire import AsyncClient, Client
from tests.e2e.conftest import STORIES, Server
from tests.e2e.parts import pid_of
from tests.e2e.worker_script import go_on, stop_at, wait_stopped

GOLDEN = STORIES / "golden.json"


@pytest.fixture(scope="module")
def story() -> str:
    if not GOLDEN.exists():
        pytest.skip(f"{GOLDEN} is not there")
    golden = json.loads(GOLDEN.read_text())
    assert golden["prompt_token_ids"] == [1]
    assert golden["max_tokens"] == 255
    text = golden["text"]
    assert isinstance(text, str)
    return text


def test_over_http(stories: Server, story: str) -> None:
    client = openai.OpenAI(base_url=f"{stories.url}/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model=stories.model, prompt=[1], max_tokens=255, temperature=0)
    assert answer.choices[0].text == story
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 255


def test_over_http_streamed(stories: Server, story: str) -> None:
    client = openai.OpenAI(base_url=f"{stories.url}/v1", api_key="none", max_retries=0)
    worker = pid_of("worker", stories)
    stories.script.give(worker, stop_at(num_sequences=1, num_tokens=10))
    stream = client.completions.create(model=stories.model, prompt=[1], max_tokens=255, temperature=0, stream=True)
    # It comes although the worker stops itself before it has computed the rest.
    pieces = [next(stream).choices[0].text]
    wait_stopped(worker, [])
    go_on(worker)
    pieces += [chunk.choices[0].text for chunk in stream]
    assert 0 < len(pieces[0]) < 100
    assert "".join(pieces) == story


def test_over_grpc(stories: Server, story: str) -> None:
    with Client(stories.address) as client:
        result = client.generate([1], model=stories.model, max_tokens=255, temperature=0)
    assert result.choices[0].text == story


async def test_among_32_different_requests(stories: Server, story: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stories.url}/v1", api_key="none", max_retries=0) as client:

        async def other(index: int) -> str:
            answer = await client.completions.create(
                model=stories.model,
                prompt=f"Once there was a {index}",
                max_tokens=100 + 3 * index,
                seed=index,
                temperature=1,
            )
            return answer.choices[0].text

        async def over_http() -> str:
            answer = await client.completions.create(model=stories.model, prompt=[1], max_tokens=255, temperature=0)
            return answer.choices[0].text

        async def over_http_streamed() -> str:
            stream = await client.completions.create(
                model=stories.model, prompt=[1], max_tokens=255, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def over_grpc() -> str:
            async with AsyncClient(stories.address) as grpc_client:
                result = await grpc_client.generate([1], model=stories.model, max_tokens=255, temperature=0)
                return result.choices[0].text

        tellers = [over_http(), over_http_streamed(), over_grpc()]
        texts = await asyncio.gather(*tellers, *(other(index) for index in range(32)))
        assert texts[:3] == [story] * 3
        alone = await other(7)
        assert texts[3 + 7] == alone, "a seeded sample depends on its seed, not on what shares its batch"
