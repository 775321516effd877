"""The anthropic SDK, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

import anthropic
import pytest
from anthropic.types import MessageParam, ThreadUnsupportedRequestError, ToolChoiceAnyParam, ToolParam

from tests.e2e.conftest import Server

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is 2 plus 3?"}]
# A parameter of the API that the SDK has no argument for.
GREEDY = {"temperature": 0}
ADD: ToolParam = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
# A model that was never taught to call would make several.
ONE_CALL: ToolChoiceAnyParam = {"type": "any", "disable_parallel_tool_use": True}


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
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        async with client.messages.stream(
            model=server.model, max_tokens=64, messages=QUESTION, extra_body=GREEDY
        ) as stream:
            assert "5" in "".join([text async for text in stream.text_stream])
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="claude-none", max_tokens=8, messages=QUESTION)


@anthropic.beta_tool
def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: Where.
    """
    return f"It rains in {city}."


def test_the_default_tool_runner_goes_on_without_a_thread(client: anthropic.Anthropic, server: Server) -> None:
    """The SDK sends `thread` first; told that there are none, it sends all messages of the second turn."""
    runner = client.beta.messages.tool_runner(
        model=server.model, max_tokens=200, messages=[{"role": "user", "content": "What is the weather in Bonn?"}],
        tools=[weather], tool_choice=ONE_CALL, max_iterations=2, extra_body=GREEDY,
    )  # fmt: skip
    first, second = list(runner)
    assert first.stop_reason == "tool_use"
    # The second turn has the conversation so far: it is longer than the first.
    inputs = [usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in (first.usage, second.usage)]
    assert inputs[1] > inputs[0]


def test_a_thread_is_refused_unless_the_client_may_go_on_without(client: anthropic.Anthropic, server: Server) -> None:
    thread = client.beta.messages.thread(model=server.model, max_tokens=16)
    with pytest.raises(ThreadUnsupportedRequestError) as refused:
        thread.send({"role": "user", "content": "What is 2 plus 3?"})
    assert refused.value.details.unsupported == ["thread"]
    unthreaded = client.beta.messages.thread(
        model=server.model, max_tokens=32, unsupported_request_behavior="continue_unthreaded"
    )
    first = unthreaded.send({"role": "user", "content": "What is 2 plus 3?"}, extra_body=GREEDY)
    second = unthreaded.send({"role": "user", "content": "What is 3 plus 4?"}, extra_body=GREEDY)
    inputs = [usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in (first.usage, second.usage)]
    assert inputs[1] > inputs[0]


async def test_a_streamed_thread_is_refused_too(server: Server) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        thread = client.beta.messages.thread(model=server.model, max_tokens=16)
        with pytest.raises(ThreadUnsupportedRequestError):
            async with thread.stream({"role": "user", "content": "What is 2 plus 3?"}) as stream:
                await stream.get_final_message()


def test_models(client: anthropic.Anthropic, server: Server) -> None:
    (model,) = client.models.list(limit=5)
    assert (model.type, model.id, model.lifecycle) == ("model", server.model, "active")
    assert model.created_at.year >= 2026
    assert client.models.retrieve(server.model) == model
    assert [model.id for model in client.beta.models.list()] == [server.model]
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.models.retrieve("claude-none")
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        client.models.list(after_id="claude-none")
