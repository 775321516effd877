"""The anthropic SDK, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.e2e.conftest import Server

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is 2 plus 3?"}]
# A parameter of the API that the SDK has no argument for.
GREEDY = {"temperature": 0}
ADD: ToolParam = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_a_message(client: anthropic.Anthropic, server: Server) -> None:
    message = client.messages.create(model=server.model, max_tokens=64, messages=QUESTION, extra_body=GREEDY)
    (block,) = message.content
    assert block.type == "text"
    assert "5" in block.text
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert message.usage.output_tokens > 1
    assert message._request_id


def test_a_streamed_message_says_the_same(client: anthropic.Anthropic, server: Server) -> None:
    whole = client.messages.create(model=server.model, max_tokens=64, messages=QUESTION, extra_body=GREEDY)
    with client.messages.stream(model=server.model, max_tokens=64, messages=QUESTION, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert [block.to_dict() for block in streamed.content] == [{"type": "text", "text": text}]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    inputs = [(usage.input_tokens, usage.cache_read_input_tokens) for usage in (whole.usage, streamed.usage)]
    assert len({computed + (cached or 0) for computed, cached in inputs}) == 1


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, server: Server) -> None:
    message = client.messages.create(
        model=server.model, max_tokens=64, messages=QUESTION, extra_body=GREEDY, stop_sequences=["#", "5"]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "5")
    cut = client.messages.create(model=server.model, max_tokens=1, messages=QUESTION, extra_body=GREEDY)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)


def test_a_tool_s_result_comes_back_in(client: anthropic.Anthropic, server: Server) -> None:
    messages: list[MessageParam] = [
        *QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I had better add.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "What is 3 plus 4?"}],
        },
    ]
    message = client.messages.create(
        model=server.model, max_tokens=64, messages=messages, tools=[ADD], system="Add.", extra_body=GREEDY
    )
    assert message.stop_reason == "end_turn"
    (block,) = message.content
    assert block.type == "text"
    assert "7" in block.text


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic, server: Server) -> None:
    count = client.messages.count_tokens(model=server.model, messages=QUESTION, system="Be brief.")
    usage = client.messages.create(model=server.model, messages=QUESTION, system="Be brief.", max_tokens=1).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_answer_goes_on_from_an_assistant_s_turn(client: anthropic.Anthropic, server: Server) -> None:
    begun: list[MessageParam] = [*QUESTION, {"role": "assistant", "content": "2 plus 3 is"}]
    message = client.messages.create(model=server.model, max_tokens=64, messages=begun, extra_body=GREEDY)
    (block,) = message.content
    assert block.type == "text"
    assert "5" in block.text
    assert not block.text.startswith("2 plus 3")


def test_errors_are_typed(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude-none", max_tokens=8, messages=QUESTION)
    assert isinstance(missing.value.body, dict)
    assert missing.value.body["type"] == "error"
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=server.model, max_tokens=0, messages=QUESTION)
    picture: MessageParam = {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}],
    }
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type.*'image'"):
        client.messages.create(model=server.model, max_tokens=8, messages=[picture])
    with pytest.raises(anthropic.APIStatusError) as wrong_method:
        client.get("/v1/messages", cast_to=object)
    assert wrong_method.value.status_code == 405
    assert wrong_method.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "/v1/messages does not take GET."},
        "request_id": wrong_method.value.request_id,
    }


async def test_the_async_client(server: Server) -> None:
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
    async with client.messages.stream(
        model=server.model, max_tokens=64, messages=QUESTION, extra_body=GREEDY
    ) as stream:
        assert "5" in "".join([text async for text in stream.text_stream])
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="claude-none", max_tokens=8, messages=QUESTION)
