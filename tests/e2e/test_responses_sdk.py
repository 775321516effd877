"""The openai SDK's responses, from the gateway."""

from __future__ import annotations

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseInputParam

from tests.e2e.conftest import Server

QUESTION = "What is 2 plus 3?"
ADD: FunctionToolParam = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def test_a_response(client: openai.OpenAI, server: Server) -> None:
    response = client.responses.create(
        model=server.model, input=QUESTION, instructions="Add.", temperature=0, metadata={"a": "b"}
    )
    assert "5" in response.output_text
    assert (response.status, response.error, response.metadata) == ("completed", None, {"a": "b"})
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_streamed_response_says_the_same(client: openai.OpenAI, server: Server) -> None:
    whole = client.responses.create(model=server.model, input=QUESTION, temperature=0)
    events = list(client.responses.create(model=server.model, input=QUESTION, temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == whole.output_text
    with client.responses.stream(model=server.model, input=QUESTION, temperature=0) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_a_response_that_reaches_its_limit_is_incomplete(client: openai.OpenAI, server: Server) -> None:
    response = client.responses.create(model=server.model, input=QUESTION, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_tool_s_result_comes_back_in(client: openai.OpenAI, server: Server) -> None:
    items: ResponseInputParam = [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Add."}]},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 2, "b": 3}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "What is 3 plus 4?"},
    ]
    response = client.responses.create(model=server.model, input=items, tools=[ADD], temperature=0)
    assert "7" in response.output_text


def test_an_answer_s_items_can_be_sent_back(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(model=server.model, input=QUESTION, temperature=0)
    turns: ResponseInputParam = [{"role": "user", "content": QUESTION}]
    turns += [item.to_dict() for item in first.output]  # type: ignore[misc]
    turns.append({"role": "user", "content": "What is 3 plus 4?"})
    assert "7" in client.responses.create(model=server.model, input=turns, temperature=0).output_text


def test_errors_are_typed(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as chained:
        client.responses.create(model=server.model, input=QUESTION, previous_response_id="resp_1")
    assert chained.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as builtin:
        client.responses.create(model=server.model, input=QUESTION, tools=[{"type": "web_search"}])
    assert builtin.value.param == "tools[0].type"
    assert "'web_search'" in builtin.value.message
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.retrieve("resp_1")
    assert "'resp_1' not found" in gone.value.message


def test_input_tokens_are_counted(client: openai.OpenAI, server: Server) -> None:
    count = client.responses.input_tokens.count(model=server.model, input=QUESTION, tools=[ADD])
    usage = client.responses.create(model=server.model, input=QUESTION, tools=[ADD], max_output_tokens=1).usage
    assert usage is not None
    assert count.input_tokens == usage.input_tokens > 1
