"""The openai SDK, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

import subprocess
import time

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import Server

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 2 plus 3?"}]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0)
    assert "5" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_says_the_same(client: openai.OpenAI, server: Server) -> None:
    whole = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0)
    stream = client.chat.completions.create(
        model=server.model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []


def test_n_choices_are_different_samples(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": "Tell me a story."}], n=4, temperature=1.5, seed=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_completions(client: openai.OpenAI, server: Server) -> None:
    answer = client.completions.create(model=server.model, prompt=["one two", "three"], max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_models(client: openai.OpenAI, server: Server) -> None:
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model


def test_errors_are_typed(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-none", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=server.model, messages=QUESTION, temperature=9)
    assert hot.value.param == "temperature"


async def test_the_async_client(server: Server) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = await client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert "5" in text
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=server.model, messages=[])


def test_curl_shows_tokens_one_by_one(server: Server) -> None:
    """Each event is there when it is sent: more arrives while the answer is still being made."""
    body = '{"model": "%s", "messages": [{"role": "user", "content": "Count from 3 to 40."}], "stream": true}'
    curl = subprocess.Popen(
        ["curl", "-sN", f"{server.url}/v1/chat/completions", "-d", body % server.model], stdout=subprocess.PIPE
    )
    assert curl.stdout is not None
    arrivals = [time.monotonic() for line in curl.stdout if line.startswith(b"data: ")]
    assert curl.wait() == 0
    assert len(arrivals) > 20
    assert len({round(arrival, 3) for arrival in arrivals}) > 10
