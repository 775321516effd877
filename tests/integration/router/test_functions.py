"""`functions` and `function_call`, which chats had before tools."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.integration.router import conftest
from tests.integration.router.conftest import StartRouter, answer_text
from tests.integration.router.fake_scheduler import unpack
from tests.integration.router.test_tools import QWEN

# Descriptions of functions are long, for the small tokenizer.
fake_scheduler = functools.partial(conftest.fake_scheduler, max_model_len=4096, chat_template=QWEN)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Tells the weather.", "parameters": SCHEMA}
ARGUMENTS = '{"city": "Bonn"}'
CALL = f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>'
NAMED = {"name": "get_weather"}
USER = {"role": "user", "content": "Bonn?"}


@pytest.mark.parametrize(
    ("choice", "text", "reason"), [("auto", CALL, "function_call"), (None, CALL * 2, "function_call"),
                                   (NAMED, ARGUMENTS, "stop")],
)  # fmt: skip
async def test_a_call_is_written_as_it_was_before_tools(
    start_router: StartRouter, choice: Any, text: str, reason: str
) -> None:
    api = await start_router(fake_scheduler(answer_text(text)))
    body = {"functions": [FUNCTION], "function_call": choice}
    (whole,) = (await api.chat(**body)).json["choices"]
    assert whole["finish_reason"] == reason
    assert whole["message"]["function_call"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert "tool_calls" not in whole["message"]
    deltas = [event["choices"][0]["delta"] for event in (await api.chat(stream=True, **body)).events]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert [call.get("name") for call in calls] == ["get_weather", *[None] * (len(calls) - 1)]
    assert "".join(call["arguments"] for call in calls) == ARGUMENTS
    assert not any("tool_calls" in delta for delta in deltas)


async def test_functions_make_the_prompt_that_tools_make(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    call = {"name": "get_weather", "arguments": ARGUMENTS}
    await api.chat(
        functions=[FUNCTION], function_call="auto",
        messages=[
            USER, {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "get_weather", "content": "Rain."},
        ],
    )  # fmt: skip
    await api.chat(
        tools=[{"type": "function", "function": FUNCTION}], parallel_tool_calls=False,
        messages=[
            USER,
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "call00001", "type": "function", "function": call}]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "Rain."},
        ],
    )  # fmt: skip
    first, second = (unpack(submit.prompt_token_ids) for submit in scheduler.submits)
    assert first == second


async def test_faults_are_named_as_the_request_has_them(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    body = {"messages": [USER], "functions": [FUNCTION, FUNCTION]}
    assert (await api.refused("CreateChatCompletion", body)).error["param"] == "functions[1].name"
    schema = json.loads(json.dumps(FUNCTION).replace('"object"', '"string"'))
    body = {"messages": [USER], "functions": [schema]}
    assert (await api.refused("CreateChatCompletion", body)).error["param"] == "functions[0].parameters"
