"""Ollama's bodies into conversations, and messages into Ollama's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ollama import ChatResponse, GenerateResponse

from services.router.apis.ollama.chat import ChatBody
from services.router.apis.ollama.generate import GenerateBody
from services.router.apis.ollama.models import tagged
from services.router.apis.ollama.writer import OllamaWriter, timestamp
from services.router.chat.message import EndReason, Message, MessageDelta, ToolCallDelta
from services.router.chat.request import ChatRequest
from services.router.errors import ApiError, invalid
from services.router.generation.usage import Usage
from services.router.grammar.structure import Structure, StructureKind
from services.router.http.reader import parse_body

USER = {"role": "user", "content": "Hello"}
USAGE = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=6)


def body_of(**body: Any) -> ChatBody:
    return parse_body(json.dumps({"model": "m:latest", "messages": [USER]} | body).encode(), ChatBody)


def chat(**body: Any) -> ChatRequest:
    return body_of(**body).to_chat("m")


def generate(**body: Any) -> ChatRequest:
    parsed = parse_body(json.dumps({"model": "m", "prompt": "Hello"} | body).encode(), GenerateBody)
    parsed.check()
    return parsed.to_chat("m")


def test_what_the_options_become() -> None:
    options = {
        "num_predict": 8, "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "seed": -1, "stop": ["#"],
        "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "num_ctx": 4096, "mirostat": 0,
    }  # fmt: skip
    request = chat(options=options, logprobs=True, top_logprobs=2)
    sampling = request.options.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.5, 0.25)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, 0.25)
    assert (sampling.seed, sampling.logprobs) == (2**64 - 1, 2)
    assert (request.options.stop.max_tokens, request.options.stop_strings) == (8, ("#",))
    assert (request.model, request.messages) == ("m", [USER])


def results_of(calls: list[tuple[str | None, str]], results: list[tuple[str | None, str | None]]) -> list[Any]:
    """The (id, name) of the call to which each result belongs. `calls`, `results`: the ids and names that they give."""
    asked = [
        {"function": {"name": name, "arguments": {}}} | ({} if call_id is None else {"id": call_id})
        for call_id, name in calls
    ]
    answers = [{"role": "tool", "content": "", "tool_call_id": call_id, "tool_name": name} for call_id, name in results]
    rendered = chat(messages=[USER, {"role": "assistant", "tool_calls": asked}, *answers]).messages
    return [(entry["tool_call_id"], entry["name"]) for entry in rendered[2:]]


def test_a_result_belongs_to_the_oldest_call_without_one_that_it_can_mean() -> None:
    calls = [("i", "a"), (None, "b"), ("j", "a"), ("j", "b")]
    assert results_of(calls, [(None, None)] * 5) == [("i", "a"), ("call00002", "b"), ("j", "a"), ("j", "b"), ("", "")]
    assert results_of(calls, [(None, "b"), (None, None), ("j", None)]) == [("call00002", "b"), ("i", "a"), ("j", "a")]
    assert results_of(calls, [("j", "b"), ("j", None), ("j", None)]) == [("j", "b"), ("j", "a"), ("j", "")]
    assert results_of(calls, [("i", "b"), ("k", None), (None, "c")]) == [("i", "b"), ("k", ""), ("", "c")]


def test_a_message_has_at_most_as_many_calls_as_in_openai_s_api() -> None:
    with pytest.raises(ApiError, match=r"Invalid 'messages\[0\].tool_calls': array too long. Expected at most 128"):
        chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}] * 129}])


def test_a_penalty_of_zero_is_none() -> None:
    assert chat(options={"repeat_penalty": 0}).options.sampling.repetition_penalty == 1.0


def test_no_limit_is_the_context_s() -> None:
    assert [chat(options={"num_predict": n}).options.stop.max_tokens for n in (-2, -1, 0, 1)] == [None, None, None, 1]
    assert chat(options={"top_k": -1}).options.sampling.top_k == 0


@pytest.mark.parametrize(
    ("form", "structure"),
    [
        ("", None),
        ("json", Structure(StructureKind.JSON_OBJECT, "", "format")),
        ({"type": "object"}, Structure(StructureKind.JSON_SCHEMA, '{"type": "object"}', "format")),
    ],
)
def test_formats(form: object, structure: Structure | None) -> None:
    assert chat(format=form).options.structure == structure
    assert generate(format=form).options.structure == structure


@pytest.mark.parametrize(
    ("think", "kwargs"),
    [
        (None, None),
        (False, {"enable_thinking": False, "thinking": False}),
        ("high", {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_thinking(think: object, kwargs: dict[str, Any] | None) -> None:
    assert chat(think=think).template_kwargs == kwargs


def test_calls_without_ids_find_their_results() -> None:
    def call(a: int) -> dict[str, Any]:
        return {"function": {"name": "add", "arguments": {"a": a}}}

    messages = chat(
        messages=[
            USER,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call(1), call(2)]},
            {"role": "tool", "tool_name": "add", "content": "one"},
            {"role": "tool", "content": "two"},
        ]
    ).messages
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
    assert messages[1]["reasoning_content"] == "Hm."
    assert messages[1]["tool_calls"][1]["function"] == {"name": "add", "arguments": '{"a": 2}'}
    assert messages[2:] == [
        {"role": "tool", "content": "one", "tool_call_id": ids[0], "name": "add"},
        {"role": "tool", "content": "two", "tool_call_id": ids[1], "name": "add"},
    ]


def test_a_prompt_is_a_conversation() -> None:
    assert generate(system="Be brief.").messages == [{"role": "system", "content": "Be brief."}, USER]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": ""}, "model"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role"),
        ({"options": {"temperature": 9}}, "options.temperature"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"stop": [""]}}, "options.stop"),
        ({"format": "yaml"}, "format"),
        ({"format": 3}, "format"),
        ({"think": 3}, "think"),
        ({"think": "much"}, "think"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ],
)
def test_bad_chats_are_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("field", [{"suffix": "x"}, {"template": "x"}, {"context": [1]}, {"images": ["aGk="]}])
def test_what_generate_cannot_do_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        generate(**field)
    assert [caught.value.param] == list(field)


def test_unknown_fields_are_counted_and_known_ones_are_not() -> None:
    assert body_of(keep_alive="5m", foo=1, options={"num_ctx": 1, "bar": 2}).num_ignored_fields == 2


THINK_SAY_CALL = [
    MessageDelta(0, reasoning="Hm"),
    MessageDelta(0, content="Let me see."),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, "", "t1", "add"), ToolCallDelta(0, '{"a"')]),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, ": 2}"), ToolCallDelta(1, "{}", "t2", "sub")]),
    MessageDelta(0, end_reason=EndReason.TOOL_CALLS),
]
CALLS = [
    {"id": "t1", "function": {"name": "add", "arguments": {"a": 2}}},
    {"id": "t2", "function": {"name": "sub", "arguments": {}}},
]


def lines_of(writer: OllamaWriter, deltas: list[MessageDelta]) -> list[Any]:
    data = b"".join(writer.events(delta) for delta in deltas) + writer.end(USAGE)
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def whole(writer: OllamaWriter, deltas: list[MessageDelta]) -> Any:
    message = Message()
    for delta in deltas:
        message.add(delta)
    return json.loads("".join(writer.whole([message], USAGE)))


def test_a_streamed_chat_says_each_call_in_one_piece() -> None:
    lines = lines_of(OllamaWriter("m", is_chat=True, vocabulary=None), THINK_SAY_CALL)
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "Hm"},
        {"role": "assistant", "content": "Let me see."},
        {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
        {"role": "assistant", "content": "", "tool_calls": CALLS[1:]},
        {"role": "assistant", "content": ""},
    ]
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"], lines[-1]["prompt_eval_count"]) == ("stop", 4, 10)
    for line in lines:
        ChatResponse.model_validate(line)


def test_what_follows_a_call_is_said_after_it() -> None:
    deltas = [MessageDelta(0, tool_calls=[ToolCallDelta(0, "{}", "t2", "sub")]), MessageDelta(0, "So.")]
    lines = lines_of(OllamaWriter("m", is_chat=True, vocabulary=None), deltas)
    assert [list(line["message"].items())[-1] for line in lines] == [
        ("content", ""), ("tool_calls", CALLS[1:]), ("content", "So."), ("content", ""),
    ]  # fmt: skip


def test_a_whole_chat() -> None:
    body = whole(OllamaWriter("m", is_chat=True, vocabulary=None), THINK_SAY_CALL)
    assert body["message"] == {
        "role": "assistant", "content": "Let me see.", "thinking": "Hm", "tool_calls": CALLS,
    }  # fmt: skip
    assert (body["model"], body["done"]) == ("m", True)
    ChatResponse.model_validate(body)


def test_generate_says_a_response() -> None:
    deltas = [MessageDelta(0, "Hi", "Hm"), MessageDelta(0, " you", end_reason=EndReason.LENGTH)]
    lines = lines_of(OllamaWriter("m", is_chat=False, vocabulary=None), deltas)
    said = [(line["response"], line.get("thinking")) for line in lines]
    assert said == [("", "Hm"), ("Hi", None), (" you", None), ("", None)]
    body = whole(OllamaWriter("m", is_chat=False, vocabulary=None), deltas)
    assert (body["response"], body["thinking"], body["done_reason"]) == ("Hi you", "Hm", "length")
    GenerateResponse.model_validate(body)


def test_durations_add_up() -> None:
    writer = OllamaWriter("m", is_chat=False, vocabulary=None)
    body = json.loads("".join(writer.whole([Message()], Usage(1, 1, 0, seconds_to_first_token=1e-9))))
    assert body["prompt_eval_duration"] == 1
    assert body["total_duration"] == body["prompt_eval_duration"] + body["eval_duration"]
    # A clock that was read later than another one has seen less.
    body = json.loads("".join(writer.whole([Message()], Usage(1, 1, 0, seconds_to_first_token=1e9))))
    assert body["eval_duration"] == 0


def test_an_error_in_a_stream_is_a_line() -> None:
    line = OllamaWriter("m", is_chat=True, vocabulary=None).error(invalid("Bad."))
    assert (json.loads(line), line[-1:]) == ({"error": "Bad."}, b"\n")


def test_names_and_times() -> None:
    names = ("m", "m:8b", "org/m", "host:80/m")
    assert [tagged(name) for name in names] == ["m:latest", "m:8b", "org/m:latest", "host:80/m:latest"]
    assert timestamp(0) == "1970-01-01T00:00:00Z"
