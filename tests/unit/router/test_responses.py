"""Bodies of /v1/responses into conversations, and messages into responses and their events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from services.router.apis.responses.body import ResponseBody
from services.router.apis.responses.response import ResponseObject
from services.router.apis.responses.writer import ResponseWriter
from services.router.chat.message import EndReason, Message, MessageDelta, ToolCallDelta
from services.router.chat.request import ChatRequest, Overflow
from services.router.chat.tools import Tool, ToolChoice, ToolMode
from services.router.errors import ApiError, internal, overloaded
from services.router.generation.usage import Usage
from services.router.grammar.structure import Structure, StructureKind
from services.router.http.answers import Written
from services.router.http.reader import parse_body
from services.router.logprobs import TokenLogprob
from services.router.model import ModelInfo, ServedModel
from services.router.parameters.sampling import SamplingParams
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer

MODEL_DIR = Path(__file__).parents[3] / "quire" / "models" / "quire-chat"
USER = {"role": "user", "content": "Hello"}
ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
SUB = {"type": "function", "name": "sub", "parameters": {"type": "object"}}
USAGE = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=6, reasoning_tokens=2)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body_of(**body: Any) -> ResponseBody:
    parsed = parse_body(json.dumps({"model": "m", "input": "Hello"} | body).encode(), ResponseBody)
    parsed.check()
    return parsed


def chat(**body: Any) -> ChatRequest:
    return body_of(**body).to_chat()


def test_what_the_options_become() -> None:
    request = chat(
        instructions="Be brief.", max_output_tokens=8, temperature=0.5, top_p=0.5, top_logprobs=2, seed=-1, top_k=-1,
        reasoning={"effort": "low"}, prompt_cache_key="k",
    )  # fmt: skip
    options = request.options
    assert request.messages == [{"role": "system", "content": "Be brief."}, USER]
    assert (options.sampling.temperature, options.sampling.top_p, options.sampling.logprobs) == (0.5, 0.5, 2)
    assert (options.sampling.seed, options.sampling.top_k) == (2**64 - 1, 0)
    assert (options.stop.max_tokens, options.prompt_cache_key) == (8, "k")
    assert request.template_kwargs == {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}
    assert chat(reasoning={"effort": "none"}).template_kwargs == {"enable_thinking": False, "thinking": False}
    given = {"thinking": True}
    assert chat(reasoning={"effort": "none"}, chat_template_kwargs=given).template_kwargs == given
    assert chat(include=["message.output_text.logprobs"]).options.sampling.logprobs == 0
    assert chat().options.sampling.logprobs is None
    assert chat(truncation="auto").overflow is Overflow.DROP_OLDEST
    assert chat(truncation="disabled").overflow is chat().overflow is Overflow.REFUSE


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2 + 3"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Add."}]},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":2}', "id": "f"},
        {"type": "function_call", "call_id": "c2", "name": "sub", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "0"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Subtract."}]},
        {"type": "function_call", "call_id": "c3", "name": "sub", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": "1"},
        {"role": "assistant", "content": "Five."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No more."}]},
    ]  # fmt: skip
    first, second, third = (
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in (("c1", "add", '{"a":2}'), ("c2", "sub", "{}"), ("c3", "sub", "{}"))
    )
    assert chat(input=items).messages == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "2 + 3"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Add.", "reasoning": "Add.",
         "tool_calls": [first, second]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "tool", "tool_call_id": "c2", "content": "0"},
        {"role": "assistant", "content": "", "reasoning_content": "Subtract.", "reasoning": "Subtract.",
         "tool_calls": [third]},
        {"role": "tool", "tool_call_id": "c3", "content": "1"},
        {"role": "assistant", "content": "Five."},
        {"role": "assistant", "content": "No more."},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "structure"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Structure(StructureKind.JSON_OBJECT, "", "text.format")),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
            Structure(StructureKind.JSON_SCHEMA, '{"type": "object"}', "text.format.schema"),
        ),
    ],
)
def test_formats(form: dict[str, Any], structure: Structure | None) -> None:
    assert chat(text={"format": form}).options.structure == structure


@pytest.mark.parametrize(
    ("body", "names", "expected"),
    [
        ({}, ["add", "sub"], ToolChoice()),
        ({"tool_choice": "none"}, ["add", "sub"], ToolChoice(ToolMode.NONE)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ["add", "sub"],
         ToolChoice(ToolMode.REQUIRED, parallel=False)),
        ({"tool_choice": {"type": "function", "name": "sub"}}, ["add", "sub"], ToolChoice(ToolMode.NAMED, "sub")),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "sub"}]}},
         ["sub"], ToolChoice(ToolMode.REQUIRED)),
    ],
)  # fmt: skip
def test_tools_and_their_choice(body: dict[str, Any], names: list[str], expected: ToolChoice) -> None:
    request = chat(tools=[ADD, SUB], **body)
    assert [tool.name for tool in request.tools] == names
    assert request.tool_choice == expected
    assert chat(tools=[ADD]).tools == (Tool("add", "Adds.", {"type": "object"}, strict=True),)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "sub"}]}},
         "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"truncation": "middle"}, "truncation"),
    ],
)  # fmt: skip
def test_bad_input_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    assert caught.value.param == param
    assert param in caught.value.message


def test_unknown_fields_are_counted_and_known_ones_are_not() -> None:
    assert body_of(store=True, background=False, previous_response_id=None, foo=1).num_ignored_fields == 1
    said = {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}
    items = [
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [said], "foo": 1},
        {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x", "bar": 1},
    ]
    assert body_of(input=items, text={"baz": 1}).num_ignored_fields == 3


@pytest.fixture
def model() -> ServedModel:
    info = ModelInfo("m", (), 128, 1000, frozenset(), SamplingParams(temperature=0.7), "", 0, "Fake", "none")
    tokenizer = (MODEL_DIR / "tokenizer.json").read_bytes()
    return ServedModel(info, Tokenizer(tokenizer, b"{}", TextThreads(1)), 0)


LOGPROB = TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.5)))
THINK_SAY_CALL = [
    MessageDelta(0, reasoning="Hm"),
    MessageDelta(0, reasoning="m.", content="Let "),
    MessageDelta(0, content="me see."),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, "", "c1", "add"), ToolCallDelta(0, '{"a"')]),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, ": 2}")], end_reason=EndReason.TOOL_CALLS),
]


def writer_of(model: ServedModel, **body: Any) -> ResponseWriter:
    parsed = body_of(**body)
    return ResponseWriter(ResponseObject(parsed, parsed.to_chat().options.sampling, model))


def joined(written: Written) -> bytes:
    return written if isinstance(written, bytes) else b"".join(written)


def events_of(data: bytes) -> list[Any]:
    """Named by their `event:` lines, numbered in order."""
    events: list[Any] = []
    for text in data.decode().removesuffix("\n\n").split("\n\n"):
        name, payload = text.split("\n")
        event = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        EVENTS.validate_python(event, strict=True)
        events.append(event)
    return events


def streamed(model: ServedModel, deltas: list[MessageDelta], **body: Any) -> list[Any]:
    writer = writer_of(model, **body)
    return events_of(b"".join(joined(writer.events(delta)) for delta in deltas) + joined(writer.end(USAGE)))


def test_the_first_events_are_sent_in_pieces_because_they_repeat_the_tools(model: ServedModel) -> None:
    parameters = {"type": "object", "properties": {f"field{number}": {} for number in range(500)}}
    tools = [{"type": "function", "name": f"t{number}", "parameters": parameters} for number in range(20)]
    writer = writer_of(model, tools=tools)
    first = writer.events(MessageDelta(0, content="a"))
    assert not isinstance(first, bytes)
    pieces = list(first)
    assert len(pieces) > 10
    assert [event["type"] for event in events_of(b"".join(pieces))[:2]] == ["response.created", "response.in_progress"]
    assert isinstance(writer.events(MessageDelta(0, content="b")), bytes)


def whole(model: ServedModel, deltas: list[MessageDelta], **body: Any) -> Any:
    message = Message()
    for delta in deltas:
        message.add(delta)
    response = json.loads("".join(writer_of(model, **body).whole([message], USAGE)))
    Response.model_validate(response, strict=True)
    return response


def without_ids(items: list[Any]) -> list[Any]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def test_a_whole_response(model: ServedModel) -> None:
    response = whole(model, THINK_SAY_CALL)
    text = {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}
    assert without_ids(response["output"]) == [
        {"type": "reasoning", "status": "completed", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hmm."}]},
        {"type": "message", "status": "completed", "role": "assistant", "content": [text]},
        {"type": "function_call", "status": "completed", "call_id": "c1", "name": "add", "arguments": '{"a": 2}'},
    ]  # fmt: skip
    assert len({item["id"] for item in response["output"]}) == 3
    assert (response["status"], response["temperature"], response["top_p"]) == ("completed", 0.7, 1.0)
    assert response["usage"] == {
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0},
        "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 14,
    }  # fmt: skip


def test_a_streamed_response_has_the_same_items(model: ServedModel) -> None:
    events = streamed(model, THINK_SAY_CALL)
    last = events[-1]["response"]
    assert without_ids(last["output"]) == without_ids(whole(model, THINK_SAY_CALL)["output"])
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == last["output"]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    # Every event about an item names it and its place.
    for event in events[2:-1]:
        item_id = event["item"]["id"] if "item" in event else event["item_id"]
        assert item_id == last["output"][event["output_index"]]["id"]
    assert (events[16]["item"]["name"], events[19]["arguments"]) == ("add", '{"a": 2}')


def test_fields_that_open_responses_wants_are_always_there(model: ServedModel) -> None:
    """The suite of Open Responses refuses a response without any of them, in events, too."""
    wanted = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    events = streamed(model, THINK_SAY_CALL)
    responses = [event["response"] for event in events if "response" in event]
    assert [response["usage"] is None for response in responses] == [True, True, False]
    for response in (*responses, whole(model, THINK_SAY_CALL)):
        assert {name: response[name] for name in wanted} == wanted
    asked = {"presence_penalty": 0.5, "frequency_penalty": -1.5}
    response = whole(model, THINK_SAY_CALL, **asked)
    assert {name: response[name] for name in asked} == asked


@pytest.mark.parametrize("truncation", ["auto", "disabled", None])
def test_truncation_is_repeated(model: ServedModel, truncation: str | None) -> None:
    told = truncation or "disabled"
    assert whole(model, THINK_SAY_CALL, truncation=truncation)["truncation"] == told
    states = [
        event["response"] for event in streamed(model, THINK_SAY_CALL, truncation=truncation) if "response" in event
    ]
    assert [state["truncation"] for state in states] == [told] * 3


def test_only_the_item_that_was_cut_is_incomplete(model: ServedModel) -> None:
    deltas = [MessageDelta(0, reasoning="Hm"), MessageDelta(0, "Let", end_reason=EndReason.LENGTH)]
    for response in (whole(model, deltas), streamed(model, deltas)[-1]["response"]):
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert streamed(model, deltas)[-1]["type"] == "response.incomplete"


def test_logprobs_are_with_the_text(model: ServedModel) -> None:
    deltas = [MessageDelta(0, "", logprobs=[LOGPROB]), MessageDelta(0, "Hi", logprobs=[LOGPROB])]
    deltas.append(MessageDelta(0, "", logprobs=[LOGPROB], end_reason=EndReason.STOP))
    (item,) = whole(model, deltas, top_logprobs=2)["output"]
    logprobs = item["content"][0]["logprobs"]
    assert [entry["logprob"] for entry in logprobs] == [-0.5] * 3
    assert [top["logprob"] for top in logprobs[0]["top_logprobs"]] == [-0.5, -1.5]
    events = streamed(model, deltas, top_logprobs=2)
    (delta,) = (event for event in events if event["type"] == "response.output_text.delta")
    assert len(delta["logprobs"]) == 2
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == logprobs


def test_a_stream_that_breaks_off_has_failed(model: ServedModel) -> None:
    for error, code in ((internal(), "server_error"), (overloaded("busy"), "rate_limit_exceeded")):
        writer = writer_of(model)
        begun = [writer.events(THINK_SAY_CALL[0]), writer.events(THINK_SAY_CALL[1])]
        data = b"".join(map(joined, [*begun, writer.error(error)]))
        last = events_of(data)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["usage"] is None
        assert last["response"]["error"] == {"code": code, "message": error.message}
        # What was complete by then.
        assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]


REQUEST: dict[str, Any] = {
    "instructions": "Be brief.", "tools": [ADD, SUB], "tool_choice": {"type": "function", "name": "add"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "top_logprobs": 1, "user": "u", "safety_identifier": "s",
}  # fmt: skip


@pytest.mark.parametrize("body", [{}, REQUEST, {"tool_choice": "none", "text": {"verbosity": "low"}}])
@pytest.mark.parametrize("reason", [EndReason.STOP, EndReason.LENGTH])
def test_every_reply_and_event_is_as_openai_documents_it(
    model: ServedModel, openai_document: Any, body: dict[str, Any], reason: EndReason
) -> None:
    deltas = [*THINK_SAY_CALL[:-1], MessageDelta(0, "So.", logprobs=[LOGPROB], end_reason=reason)]
    writer = writer_of(model, **body)
    writer.events(deltas[0])
    failed = json.loads(joined(writer.error(internal())).decode().split("data: ")[1])
    documented = {
        "Response": [whole(model, deltas, **body), whole(model, [MessageDelta(0, end_reason=reason)], **body)],
        "ResponseStreamEvent": [*streamed(model, deltas, **body), failed],
    }
    for name, values in documented.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": openai_document["components"]}
        validator = jsonschema.Draft202012Validator(schema)
        for value in values:
            assert [error.message for error in validator.iter_errors(value)] == [], value


def test_vllm_s_options() -> None:
    options = chat(
        stop=["#"], ignore_eos=True, include_stop_str_in_output=True, skip_special_tokens=False,
        chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip
    assert (options.options.stop_strings, options.options.stop.ignore_eos) == (("#",), True)
    assert (options.options.includes_stop, options.options.skip_special_tokens) == (True, False)
    assert options.template_kwargs == {"enable_thinking": False}
    assert chat(chat_template_kwargs={"x": 1}, reasoning={"effort": "none"}).template_kwargs == {
        "enable_thinking": False, "thinking": False, "x": 1,
    }  # fmt: skip
