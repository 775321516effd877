"""Tools that may be called beside a structure, through every API: an answer is calls or what was asked for."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.integration.router import conftest
from tests.integration.router.conftest import MODEL, StartRouter, answer_text
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE
from tests.integration.router.test_other_apis import post
from tests.integration.router.test_tools import CALL, QWEN, TIME, WEATHER, answers, calls_of, prompt_of

# Descriptions of tools are long, for the small tokenizer.
fake_scheduler = functools.partial(conftest.fake_scheduler, max_model_len=4096)
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
QUOTING = json.dumps({"x": CALL}, ensure_ascii=False)


@pytest.mark.parametrize("thoughts", ["", "<think>\nHm.\n</think>\n\n"])
async def test_an_answer_is_calls_or_content(start_router: StartRouter, thoughts: str) -> None:
    for text, content, calls in (
        (f"{CALL}\n{CALL}", None, [("get_weather", {"city": "Köln"})] * 2),
        ('{"x": "y"}', '{"x": "y"}', []),
        # A call is what begins the answer, and no text in it.
        (QUOTING, QUOTING, []),
    ):
        scheduler = fake_scheduler(answer_text(thoughts + text), chat_template=QWEN)
        api = await start_router(scheduler)
        for completion in await answers(api, tools=[WEATHER, TIME], response_format=FORMAT):
            assert completion.choices[0].message.content == content
            assert calls_of(completion) == calls
            assert completion.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        rules, structure, _ = json.loads(scheduler.submits[0].constraints.grammar)["grammars"]
        assert rules["lark_grammar"].startswith("start: (begin thoughts breaks)? (calls | @structure)\n")
        assert 'name: "get_weather" | "get_time"\n' in rules["lark_grammar"]
        assert "x" in structure["json_schema"]["properties"]


async def test_every_api_has_both(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(CALL), chat_template=QWEN)
    api = await start_router(scheduler)
    function = {"name": "get_weather", "parameters": SCHEMA}
    for method, body in (
        ("CreateMessage", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100,
                           "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
                           "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("CreateResponse", {"input": "x", "tools": [function | {"type": "function"}],
                            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
        ("Chat", {"messages": [{"role": "user", "content": "x"}], "format": SCHEMA, "stream": False,
                  "tools": [{"type": "function", "function": function}]}),
    ):  # fmt: skip
        (reply,) = await post(api, method, {"model": MODEL, **body})
        assert b"get_weather" in reply
        assert b"tool_call>" not in reply
        assert "(calls | @structure)" in scheduler.submits[-1].constraints.grammar


async def test_calls_that_are_none_or_asked_for_are_no_alternative(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text('[{"name": "get_time", "parameters": {}}]'), chat_template=QWEN)
    api = await start_router(scheduler)
    for choice in ("none", "required"):
        await api.chat(tools=[TIME], tool_choice=choice, response_format=FORMAT)
        assert "calls" not in scheduler.submits[-1].constraints.grammar


async def test_a_template_without_tools_is_told_how_to_call(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text('{"name": "get_time", "arguments": {}}'))
    api = await start_router(scheduler)
    for completion in await answers(api, tools=[TIME], response_format=FORMAT):
        assert calls_of(completion) == [("get_time", {})]
    prompt = prompt_of(scheduler)
    assert '{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}' in prompt


@pytest.mark.parametrize(("parser", "is_refused"), [("pythonic", True), ("none", False), ("mistral", False)])
async def test_a_form_that_no_grammar_is_made_of_is_refused(
    start_router: StartRouter, parser: str, is_refused: bool
) -> None:
    api = await start_router(fake_scheduler(answer_text("{}"), chat_template=CHAT_TEMPLATE), tool_call_parser=parser)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": [TIME]}
    if is_refused:
        refused = await api.refused("CreateChatCompletion", body | {"response_format": FORMAT})
        assert refused.error["param"] == "response_format.json_schema.schema"
        assert "'required'" in refused.error["message"]
    else:
        assert (await api.chat(**body, response_format=FORMAT)).json["choices"][0]["message"]["content"] == "{}"
    await api.chat(**body, response_format=FORMAT, tool_choice="none")
    await api.chat(**body, response_format={"type": "text"})
