"""Tools and reasoning through a whole router: what the model is told, and what clients get of what it writes."""

from __future__ import annotations

import functools
import json
from typing import Any

import grpc
import jsonschema
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import Tokenizer

from quire.client.aio import AsyncClient
from quire.client.errors import QuireError
from quire.client.results import ToolCall
from quire.client.tools import Tool
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router import conftest
from tests.integration.router.conftest import Api, Reply, StartRouter, answer_text
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, unpack
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, EOS_TOKEN_ID, byte_level

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
# Descriptions of tools are long, for the small tokenizer.
fake_scheduler = functools.partial(conftest.fake_scheduler, max_model_len=4096)
# A template that knows tools, in Qwen's form, and reasoning.
QWEN = (
    "{% if tools %}tools: {{ tools | tojson }} <tool_call>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}CALL {{ call.function.name }} {{ call.function.arguments.city }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if reasoning_effort %}effort: {{ reasoning_effort }}\n{% endif %}{% endif %}"
)


@functools.cache
def with_python_tag() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens(["<|python_tag|>"])
    return tokenizer


def prompt_of(scheduler: FakeScheduler) -> str:
    ids = unpack(scheduler.submits[-1].prompt_token_ids)
    return str(byte_level().decode(ids, skip_special_tokens=False))


def gathered(events: list[Any]) -> ChatCompletion:
    """What the SDK makes of a stream, one that was cut included."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for event in events:
        state.handle_chunk(ChatCompletionChunk.model_validate(event, strict=True))
    return ChatCompletion.model_validate(state.current_completion_snapshot.model_dump())


async def answers(api: Api, **body: Any) -> list[ChatCompletion]:
    """Whole and streamed."""
    whole = await api.chat(**body)
    streamed = await api.chat(**body, stream=True, stream_options={"include_usage": True})
    return [ChatCompletion.model_validate(whole.json, strict=True), gathered(streamed.events)]


def nested(depth: int) -> dict[str, Any]:
    """A schema of an object in an object."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def calls_of(completion: ChatCompletion) -> list[tuple[str, Any]]:
    calls = completion.choices[0].message.tool_calls or []
    assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls if call.type == "function"]


async def test_calls_are_no_content(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(f"{CALL}\n{CALL}"), chat_template=QWEN)
    api = await start_router(scheduler)
    for completion in await answers(api, tools=[WEATHER, TIME]):
        assert calls_of(completion) == [("get_weather", {"city": "Köln"})] * 2
        assert completion.choices[0].message.content is None
        assert completion.choices[0].finish_reason == "tool_calls"
    assert '"name": "get_weather", "description": "The weather in a city."' in prompt_of(scheduler)


async def test_text_before_a_call_is_content_and_one_call_is_enough_where_one_is_asked_for(
    start_router: StartRouter,
) -> None:
    api = await start_router(fake_scheduler(answer_text(f"I look.\n{CALL}\n{CALL}"), chat_template=QWEN))
    for completion in await answers(api, tools=[WEATHER], parallel_tool_calls=False):
        assert completion.choices[0].message.content == "I look."
        assert calls_of(completion) == [("get_weather", {"city": "Köln"})]


async def test_a_call_that_is_cut_says_so(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text(CALL), chat_template=QWEN))
    num_tokens = len(byte_level().encode(CALL).ids) - 8
    for completion in await answers(api, tools=[WEATHER], max_tokens=num_tokens):
        assert completion.choices[0].finish_reason == "length"
        (call,) = completion.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert '{"city": "Köln"}}'.startswith(call.function.arguments)


async def test_without_tools_or_with_none_to_call_all_text_is_content(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(CALL), chat_template=QWEN)
    api = await start_router(scheduler)
    bodies: tuple[dict[str, Any], ...] = ({}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": []})
    for body in bodies:
        for completion in await answers(api, **body):
            assert completion.choices[0].message.content == CALL
            assert completion.choices[0].finish_reason == "stop"
        assert "tools:" not in prompt_of(scheduler)


async def test_special_tokens_of_a_form_reach_the_parser_only(start_router: StartRouter) -> None:
    template = CHAT_TEMPLATE + "{# <|python_tag|> #}{% if tools %}{% endif %}"
    text = 'I look.<|python_tag|>{"name": "get_weather", "parameters": {"city": "Köln"}}'
    for answer, content, calls in (
        (text, "I look.", [("get_weather", {"city": "Köln"})]),
        ("<|python_tag|>print(1)", "print(1)", []),
    ):
        script = answer_text(answer, with_python_tag())
        api = await start_router(fake_scheduler(script, tokenizer=with_python_tag(), chat_template=template))
        for completion in await answers(api, tools=[WEATHER]):
            assert completion.choices[0].message.content == content
            assert calls_of(completion) == calls


async def test_a_model_whose_template_knows_no_tools_is_told_of_them_in_a_system_message(
    start_router: StartRouter,
) -> None:
    text = '{"name": "get_weather", "arguments": {"city": "Köln"}}'
    scheduler = fake_scheduler(answer_text(text))
    api = await start_router(scheduler)
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bonn"}'}}
    messages = [
        {"role": "user", "content": "Bonn?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Rain."},
        {"role": "user", "content": "Köln?"},
    ]
    for completion in await answers(api, tools=[WEATHER], messages=messages):
        assert calls_of(completion) == [("get_weather", {"city": "Köln"})]
    system, user, assistant, result, _ = prompt_of(scheduler).split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nYou can call these functions")
    assert '"name": "get_weather"' in system
    assert '{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}' in system
    assert user.endswith("Bonn?")
    assert assistant == '<|im_start|>assistant\n{"name": "get_weather", "arguments": {"city": "Bonn"}}'
    assert result == "<|im_start|>user\nResult of get_weather:\nRain.\n\nKöln?"


async def test_calls_and_reasoning_of_earlier_turns_reach_the_template(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(chat_template=QWEN)
    api = await start_router(scheduler)
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bonn"}'}}
    await api.chat(
        messages=[
            {"role": "user", "content": "Bonn?"},
            {"role": "assistant", "reasoning": "Hm.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "Rain."},
        ]
    )
    assert "<think>Hm.</think>CALL get_weather Bonn<|im_end|>\n<|im_start|>tool\nRain." in prompt_of(scheduler)


async def test_reasoning_has_a_field_of_its_own(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(f"<think>\nWhere is it?\n</think>\n\n{CALL}"), chat_template=QWEN)
    api = await start_router(scheduler)
    num_tokens = len(byte_level().encode("<think>\nWhere is it?\n</think>").ids)
    for completion in await answers(api, tools=[WEATHER]):
        extra = completion.choices[0].message.model_extra or {}
        assert extra["reasoning_content"] == extra["reasoning"] == "Where is it?"
        assert calls_of(completion) == [("get_weather", {"city": "Köln"})]
        assert completion.usage is not None
        assert completion.usage.completion_tokens_details is not None
        assert abs((completion.usage.completion_tokens_details.reasoning_tokens or 0) - num_tokens) <= 1
    for completion in await answers(api, tools=[WEATHER], include_reasoning=False):
        assert (completion.choices[0].message.model_extra or {}).get("reasoning") is None
        assert calls_of(completion) == [("get_weather", {"city": "Köln"})]


async def test_a_template_that_opens_reasoning_in_the_prompt_is_understood(start_router: StartRouter) -> None:
    template = CHAT_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}") + "{# </think> #}"
    api = await start_router(fake_scheduler(answer_text("Hm.</think>Yes."), chat_template=template))
    for completion in await answers(api):
        assert completion.choices[0].message.content == "Yes."
        assert (completion.choices[0].message.model_extra or {})["reasoning"] == "Hm."
    continued = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "<think>Well"}]
    for completion in await answers(api, messages=continued, continue_final_message=True):
        assert (completion.choices[0].message.model_extra or {})["reasoning"] == "Hm."
    closed = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "<think>Well</think>So"}]
    for completion in await answers(api, messages=closed, continue_final_message=True):
        assert completion.choices[0].message.content == "Hm.</think>Yes."


async def test_how_much_to_reason_is_the_template_s_to_say(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(chat_template=QWEN)
    api = await start_router(scheduler)
    await api.chat(reasoning_effort="high")
    assert prompt_of(scheduler).endswith("assistant\neffort: high\n")
    await api.chat(reasoning_effort="none", chat_template_kwargs={"reasoning_effort": ""})
    assert prompt_of(scheduler).endswith("assistant\n<think>\n\n</think>\n\n")
    await api.chat(chat_template_kwargs={"enable_thinking": False})
    assert prompt_of(scheduler).endswith("assistant\n<think>\n\n</think>\n\n")


async def test_a_required_call_is_an_array_whatever_the_model_s_own_form(start_router: StartRouter) -> None:
    text = '[{"name": "get_weather", "parameters": {"city": "Köln"}}, {"name": "get_time", "parameters": {}}]'
    scheduler = fake_scheduler(answer_text(text), chat_template=QWEN)
    api = await start_router(scheduler)
    for completion in await answers(api, tools=[WEATHER, TIME], tool_choice="required"):
        assert calls_of(completion) == [("get_weather", {"city": "Köln"}), ("get_time", {})]
        assert completion.choices[0].message.content is None
        assert completion.choices[0].finish_reason == "tool_calls"
    assert prompt_of(scheduler).endswith("<|im_start|>assistant\n")


OPENS_REASONING = CHAT_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}") + "{# </think> #}"


async def test_a_call_that_is_asked_for_comes_after_reasoning(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text('Hm.</think>\n[{"name": "get_time"}]'), chat_template=OPENS_REASONING)
    api = await start_router(scheduler)
    for completion in await answers(api, tools=[TIME], tool_choice="required"):
        assert calls_of(completion) == [("get_time", {})]
        assert (completion.choices[0].message.model_extra or {})["reasoning"] == "Hm."


@pytest.mark.parametrize(
    ("template", "options", "text", "reasons", "words"),
    [
        (QWEN, {}, "<think>\nHm.\n</think>\n\n{}", True, "start: (begin thoughts breaks)? @structure"),
        (OPENS_REASONING, {}, "Hm.</think>{}", True, "start: begin_token? thoughts breaks @structure"),
        (QWEN, {"chat_template_kwargs": {"enable_thinking": False}}, "{}", False, ""),
        # Also where the template does not heed it.
        (CHAT_TEMPLATE + "{# </think> #}", {"reasoning_effort": "none"}, "{}", False, ""),
        (QWEN, {"continue_final_message": True, "add_generation_prompt": False}, "{}", False, ""),
        (CHAT_TEMPLATE, {}, "{}", False, ""),
    ],
)
async def test_a_structure_begins_after_reasoning_if_there_is_to_be_some(
    start_router: StartRouter, template: str, options: dict[str, Any], text: str, reasons: bool, words: str
) -> None:
    scheduler = fake_scheduler(answer_text(text), chat_template=template)
    api = await start_router(scheduler)
    messages = [{"role": "user", "content": "Hi"}]
    if "continue_final_message" in options:
        messages.append({"role": "assistant", "content": "Well"})
    for completion in await answers(api, messages=messages, response_format={"type": "json_object"}, **options):
        assert completion.choices[0].message.content == "{}"
        reasoning = (completion.choices[0].message.model_extra or {}).get("reasoning")
        assert (reasoning is not None) is reasons
    first = json.loads(scheduler.submits[0].constraints.grammar)["grammars"][0]
    assert (first.get("lark_grammar") or "").startswith(words)
    assert bool(first.get("json_schema")) is not reasons


async def test_a_named_function_s_call_is_its_arguments_and_ends_with_stop(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text('{"city": "Köln"}'), chat_template=QWEN))
    named = {"type": "function", "function": {"name": "get_weather"}}
    for completion in await answers(api, tools=[WEATHER, TIME], tool_choice=named):
        assert calls_of(completion) == [("get_weather", {"city": "Köln"})]
        # OpenAI: a function that was forced ends with `stop`.
        assert completion.choices[0].finish_reason == "stop"


async def test_choices_have_calls_of_their_own(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        text = (CALL, "No idea.")[choice.choice_index]
        return Answer([*byte_level().encode(text).ids, EOS_TOKEN_ID])

    api = await start_router(fake_scheduler(script, chat_template=QWEN))
    for completion in await answers(api, tools=[WEATHER], n=2):
        assert [choice.finish_reason for choice in completion.choices] == ["tool_calls", "stop"]
        assert completion.choices[1].message.content == "No idea."


async def test_flags_choose_the_forms(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text("Hm.</think>[get_time()]"), chat_template=QWEN)
    api = await start_router(scheduler, tool_call_parser="pythonic", reasoning_parser="deepseek_r1")
    for completion in await answers(api, tools=[TIME]):
        assert calls_of(completion) == [("get_time", {})]
        assert (completion.choices[0].message.model_extra or {})["reasoning"] == "Hm."
    api = await start_router(scheduler, tool_call_parser="none", reasoning_parser="none")
    for completion in await answers(api, tools=[TIME]):
        assert completion.choices[0].message.content == "Hm.</think>[get_time()]"


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_are_what_openai_documents(start_router: StartRouter, openai_document: Any, stream: bool) -> None:
    text = f"<think>Hm.</think>I look.\n{CALL}"
    api = await start_router(fake_scheduler(answer_text(text), chat_template=QWEN))
    reply: Reply = await api.chat(tools=[WEATHER], stream=stream, logprobs=True)
    name = "CreateChatCompletionStreamResponse" if stream else "CreateChatCompletionResponse"
    schema = {"$ref": f"#/components/schemas/{name}", "components": openai_document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    for answer in reply.events if stream else [reply.json]:
        validator.validate(answer)
    if stream:
        deltas = [choice["delta"] for event in reply.events for choice in event["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert set(calls[0]) == {"index", "id", "type", "function"}
        assert calls[0]["function"]["name"] == "get_weather"
        assert all(set(call) == {"index", "function"} for call in calls[1:])
        assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Köln"}
        entries = [c["logprobs"]["content"] for e in reply.events for c in e["choices"] if c["logprobs"]]
        assert sum(map(len, entries)) == len(byte_level().encode(text).ids) + 1


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "another tool"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "'f'"),
        ({"tool_choice": "required"}, "tool_choice", "needs 'tools'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
            "must have 'type': 'object'",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "y" * 65_536}}}]},
            "tools[0].function.parameters",
            "maximum is 65536",
        ),
    ],
)
async def test_tools_that_cannot_be_are_refused(
    start_router: StartRouter, body: dict[str, Any], param: str, words: str
) -> None:
    api = await start_router(fake_scheduler())
    chat = {"messages": [{"role": "user", "content": "x"}], **body}
    refused = await api.refused("CreateChatCompletion", chat)
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.error["param"] == param
    assert words in refused.error["message"]


@pytest.mark.parametrize(("num_tools", "at_fault"), [(1, 0), (7, 0), (7, 3), (7, 6)])
async def test_the_tool_that_no_grammar_can_be_made_of_is_named(
    start_router: StartRouter, num_tools: int, at_fault: int
) -> None:
    def parameters(index: int) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"$ref": "http://example.com/x"} if index == at_fault else {}}}

    api = await start_router(fake_scheduler())
    schemas = [(f"f{index}", parameters(index)) for index in range(num_tools)]
    chat = {"messages": [{"role": "user", "content": "x"}]}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in schemas]
    named = {"type": "function", "function": {"name": f"f{at_fault}"}}
    for choice in ("required", named):
        refused = await api.refused("CreateChatCompletion", {**chat, "tools": tools, "tool_choice": choice})
        assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.error["param"] == f"tools[{at_fault}].function.parameters"
        assert "cannot be used" in refused.error["message"]
    typed = [{"name": name, "parameters": schema, "type": "function"} for name, schema in schemas]
    refused = await api.refused("CreateResponse", {"input": "x", "tools": typed, "tool_choice": "required"})
    assert refused.error["param"] == f"tools[{at_fault}].parameters"


async def test_descriptions_count_for_the_prompt_alone(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(max_model_len=2**18))
    schema = {"type": "object", "properties": {"description": {"description": "x" * 25_000, "title": "y"}}}
    tools = [{"type": "function", "function": {"name": f"f{index}", "parameters": schema}} for index in range(3)]
    assert (await api.chat(tools=tools, tool_choice="required")).json


async def test_arguments_that_become_text_are_counted_first(start_router: StartRouter) -> None:
    """The request's own template names a form for calls, and shows no calls itself. So the router writes them as text,
    for which it must read their arguments."""
    api = await start_router(fake_scheduler(max_model_len=2**20))

    def conversation(num_arrays: int) -> dict[str, Any]:
        function = {"name": "f", "arguments": f'{{"a": [{", ".join(["[]"] * num_arrays)}]}}'}
        calls = [{"id": "1", "type": "function", "function": function}]
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
        return {"messages": messages, "chat_template": "{# <start_function_call> #}{{ messages[1].content }}"}

    assert (await api.chat(**conversation(3))).json
    refused = await api.refused("CreateChatCompletion", conversation(32_768))
    assert (refused.status, refused.error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "messages")


async def test_tools_that_are_too_much_together_are_named_together(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(max_model_len=2**18))
    large = {"type": "object", "properties": {f"{key:05000}": {} for key in range(5)}}
    tools = [{"type": "function", "function": {"name": f"f{index}", "parameters": large}} for index in range(3)]
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    refused = await api.refused("CreateChatCompletion", chat)
    assert refused.error["param"] == "tools", refused.error


async def test_the_typed_api_and_its_client_have_tools_and_reasoning_too(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(f"<think>Hm.</think>I look.{CALL}"), chat_template=QWEN)
    api = await start_router(scheduler)
    weather = Tool("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
    earlier: list[dict[str, Any]] = [
        {"role": "user", "content": "Bonn?"},
        {"role": "assistant", "reasoning": "Hm.", "tool_calls": [ToolCall("a", "get_weather", '{"city": "Bonn"}')]},
        {"role": "tool", "tool_call_id": "a", "content": "Rain."},
    ]
    async with AsyncClient(api.address) as client:
        result = await client.chat(earlier, tools=[weather])
        (call,) = result.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Köln"})
        assert call.id.startswith("call_")
        (choice,) = result.choices
        assert (choice.text, choice.reasoning, choice.finish_reason) == ("I look.", "Hm.", "tool_calls")
        assert 0 < result.usage.reasoning_tokens < result.usage.completion_tokens
        assert "<think>Hm.</think>CALL get_weather Bonn<|im_end|>\n<|im_start|>tool\nRain." in prompt_of(scheduler)
        assert '"description": "The weather."' in prompt_of(scheduler)
        assert not (await client.chat(earlier, tools=[weather], tool_choice="none")).tool_calls
        assert (await client.chat(earlier, tools=[Tool("f", parameters=nested(90))])).text
        for options, param in (
            ({"tools": [Tool("a b")]}, "tools[0].name"),
            ({"tools": [Tool("f", parameters={"type": "array"})]}, "tools[0].parameters"),
            ({"tools": [weather], "tool_choice": "g"}, "tool_choice"),
            ({"tools": [Tool("f", parameters=nested(100))]}, "tools[0].parameters"),
            ({"tools": [Tool("f", parameters=nested(400))], "tool_choice": "required"}, "tools[0].parameters"),
        ):
            with pytest.raises(QuireError) as refused:
                await client.chat(earlier, **options)
            assert refused.value.param == param
        with pytest.raises(QuireError) as refused:
            await client.chat(earlier[::2])
        assert refused.value.param == "messages[1].tool_call_id"
        cut = {"role": "assistant", "tool_calls": [ToolCall("a", "f", '{"city": "Bo')]}
        await client.chat([cut, earlier[2]])
        assert "CALL f <|im_end|>" in prompt_of(scheduler)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, QWEN], ids=["no tools in the template", "tools in the template"])
async def test_tokenize_counts_the_prompt_that_a_chat_has(start_router: StartRouter, template: str) -> None:
    scheduler = fake_scheduler(chat_template=template)
    api = await start_router(scheduler)
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bonn"}'}}
    messages = [
        {"role": "user", "content": "How is it in Bonn?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    counts = set()
    for choice in (
        {}, {"tool_choice": "none"}, {"tool_choice": "required"}, {"parallel_tool_calls": False},
        {"reasoning_effort": "none"},
    ):  # fmt: skip
        body = {"model": conftest.MODEL, "messages": messages, "tools": [WEATHER, TIME], **choice}
        await api.chat(**body)
        tokens = (await api.post("Tokenize", body)).json["tokens"]
        assert tokens == unpack(scheduler.submits[-1].prompt_token_ids), choice
        counts.add(len(tokens))
    assert len(counts) > 1


async def test_tokenize_refuses_tools_as_a_chat_does(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    for wrong in (
        {"tools": [WEATHER, WEATHER]}, {"tools": [{"type": "function"}]}, {"tool_choice": "required"},
        {"messages": [{"role": "tool", "content": "Rain.", "tool_call_id": "call_9"}]},
    ):  # fmt: skip
        body = {"messages": [{"role": "user", "content": "Hello"}], **wrong}
        of_chat = await api.refused("CreateChatCompletion", body)
        of_tokenize = await api.refused("Tokenize", body)
        assert of_tokenize.error == of_chat.error
        assert of_tokenize.error["param"] is not None
