"""Tools through the whole stack, with a model that was never taught any."""

from __future__ import annotations

import openai
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam

from tests.e2e.conftest import Server

WEATHER: ChatCompletionToolUnionParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
QUESTION: ChatCompletionMessageParam = {"role": "user", "content": "What is 2 plus 3?"}


def test_a_model_without_tools_can_be_asked_with_some(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    plain = client.chat.completions.create(model=server.model, messages=[QUESTION], temperature=0, max_tokens=64)
    whole = client.chat.completions.create(
        model=server.model, messages=[QUESTION], tools=[WEATHER], temperature=0, max_tokens=64
    )
    assert whole.usage is not None
    assert plain.usage is not None
    # It is told of them, whatever it makes of it.
    assert whole.usage.prompt_tokens > plain.usage.prompt_tokens + 50
    chunks = list(
        client.chat.completions.create(
            model=server.model, messages=[QUESTION], tools=[WEATHER], temperature=0, max_tokens=64, stream=True
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == (whole.choices[0].message.content or "")
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_conversation_with_calls_goes_on(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model=server.model,
        messages=[
            QUESTION,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "Rain."},
        ],
        tools=[WEATHER],
        temperature=0,
        max_tokens=16,
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
