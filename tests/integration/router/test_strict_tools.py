"""Strict tools through a whole router: what constrains the model, what clients get, and what is refused."""

from __future__ import annotations

import grpc
import pytest

from tests.integration.router.conftest import StartRouter, answer_text
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE
from tests.integration.router.test_tools import CALL, QWEN, TIME, WEATHER, answers, calls_of, fake_scheduler


@pytest.mark.parametrize("template", [QWEN, CHAT_TEMPLATE], ids=["hermes", "plain"])
async def test_a_strict_tool_needs_a_grammar_and_others_need_none(start_router: StartRouter, template: str) -> None:
    scheduler = fake_scheduler(answer_text(f"I look.\n{CALL}"), chat_template=template)
    api = await start_router(scheduler)
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}  # type: ignore[operator]
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"$ref": "http://example.com/x"}}}
    for tools, choice in (([WEATHER, bad], "auto"), ([strict], "none"), ([WEATHER], "auto")):
        assert (await api.chat(tools=tools, tool_choice=choice)).json
        assert not scheduler.submits[-1].constraints.grammar
    for body in ({"tools": [strict, bad]}, {"tools": [TIME, strict], "response_format": {"type": "json_object"}}):
        assert (await api.chat(**body)).json
        assert "get_weather" in scheduler.submits[-1].constraints.grammar
    if template == QWEN:
        for completion in await answers(api, tools=[TIME, strict]):
            assert (completion.choices[0].message.content, calls_of(completion)) == (
                "I look.", [("get_weather", {"city": "Köln"})],
            )  # fmt: skip
    strict_bad = {"type": "function", "function": bad["function"] | {"strict": True}}  # type: ignore[operator]
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [TIME, strict, strict_bad]}
    refused = await api.refused("CreateChatCompletion", chat)
    assert (refused.status, refused.error["param"]) == (
        grpc.StatusCode.INVALID_ARGUMENT, "tools[2].function.parameters",
    )  # fmt: skip


async def test_a_strict_tool_whose_arguments_are_not_json(start_router: StartRouter) -> None:
    call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</tool_call>"
    scheduler = fake_scheduler(answer_text(f"I look.\n{call}"), chat_template=CHAT_TEMPLATE)
    api = await start_router(scheduler, tool_call_parser="qwen3_coder")
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}  # type: ignore[operator]
    for completion in await answers(api, tools=[TIME, strict]):
        assert (completion.choices[0].message.content, calls_of(completion)) == (
            "I look.", [("get_weather", {"city": "Köln"})],
        )  # fmt: skip
    assert "<parameter=city>" in scheduler.submits[-1].constraints.grammar
    schema = {"type": "object", "minProperties": 1, "additionalProperties": True}
    counted = {"type": "function", "function": {"name": "counted", "parameters": schema, "strict": True}}
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [strict, counted]}
    refused = await api.refused("CreateChatCompletion", chat)
    assert (refused.status, refused.error["param"]) == (
        grpc.StatusCode.INVALID_ARGUMENT, "tools[1].function.parameters",
    )  # fmt: skip
