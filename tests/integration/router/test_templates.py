"""Which template writes a request's prompt, and what of the request it is given."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.chat_templates.published import Source, ours
from tests.integration.router import conftest
from tests.integration.router.conftest import StartRouter, answer_text
from tests.integration.router.fake_scheduler import FakeScheduler, unpack
from tests.integration.router.small_tokenizers import byte_level

# Descriptions of tools are long, for the small tokenizer.
fake_scheduler = functools.partial(conftest.fake_scheduler, max_model_len=4096)

SYSTEM = {"role": "system", "content": "Answer in Latin."}
USER = {"role": "user", "content": "Is it raining?"}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


def prompt_of(scheduler: FakeScheduler) -> str:
    ids = unpack(scheduler.submits[-1].prompt_token_ids)
    return str(byte_level().decode(ids, skip_special_tokens=False))


async def test_calls_in_a_content_do_not_make_it_one_of_parts(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(chat_template=ours()["calls_from_content"])
    api = await start_router(scheduler)
    await api.chat(messages=[USER])
    assert prompt_of(scheduler) == "<s>[INST]Is it raining?[/INST]"
    await api.chat(messages=[SYSTEM, USER], tools=[WEATHER])
    assert prompt_of(scheduler).startswith('<s>[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "get_w')
    assert prompt_of(scheduler).endswith("[INST]Answer in Latin.\n\nIs it raining?[/INST]")


@pytest.mark.parametrize("name", ["other_variables", "system_left_out", "tools_of_messages", "strict_turns"])
async def test_neither_tools_nor_the_system_s_text_are_lost(start_router: StartRouter, name: str) -> None:
    scheduler = fake_scheduler(chat_template=ours()[name])
    api = await start_router(scheduler)
    await api.chat(messages=[SYSTEM, USER], tools=[WEATHER])
    for text in ("get_weather", "Answer in Latin.", "Is it raining?"):
        assert text in prompt_of(scheduler)


async def test_the_template_for_tools_is_taken_where_there_are_some(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(CALL), chat_template=ours()["named"])
    api = await start_router(scheduler)
    (choice,) = (await api.chat(messages=[USER], tools=[WEATHER])).json["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert "You may call functions. <tools>" in prompt_of(scheduler)
    for body in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        await api.chat(messages=[USER], **body)
        assert prompt_of(scheduler) == "<s><|im_start|>user\nIs it raining?<|im_end|>\n<|im_start|>assistant\n"


def test_what_is_wrong_with_a_template_for_tools_is_told_at_the_start() -> None:
    named: Source = [{"name": "default", "template": "fine"}, {"name": "tool_use", "template": "{% if %}"}]
    threads = TextThreads(1)
    tokenizer = Tokenizer(byte_level().to_str().encode(), json.dumps({"chat_template": named}).encode(), threads)
    (problem,) = tokenizer.warm_templates()
    assert problem.startswith("The model's chat template cannot be parsed: line 1")
    threads.close()


async def test_a_template_for_tools_that_shows_none_is_not_taken(start_router: StartRouter) -> None:
    default = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call>"
    named: Source = [{"name": "default", "template": default}, {"name": "tool_use", "template": "no tools <tool_call>"}]
    scheduler = fake_scheduler(chat_template=named)
    api = await start_router(scheduler)
    await api.chat(messages=[USER], tools=[WEATHER])
    assert "get_weather" in prompt_of(scheduler)


# Templates that requests bring.


async def test_a_request_s_own_template_gets_its_tools_in_the_form_that_it_has(start_router: StartRouter) -> None:
    # The model's own template knows no tools and another form of reasoning.
    scheduler = fake_scheduler(answer_text(f"<think>Hm.</think>{CALL}"))
    api = await start_router(scheduler)
    own = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}<tool_call></tool_call></think>"
    (choice,) = (await api.chat(messages=[USER], tools=[WEATHER], chat_template=own)).json["choices"]
    assert prompt_of(scheduler).startswith('[{"type": "function", "function": {"name": "get_weather"')
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Bonn"}'


async def test_tools_are_described_to_a_request_s_own_template_that_shows_none(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(chat_template=ours()["either_content"])
    api = await start_router(scheduler)
    own = ours()["other_variables"]
    call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Ulm"}'}}
    asked: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "Dry."},
    ]
    await api.chat(messages=asked, tools=[WEATHER], chat_template=own)
    for text in ("You can call these functions.", '"arguments": {"city": "Ulm"}', "Result of get_weather:\nDry."):
        assert text in prompt_of(scheduler)


async def test_a_hostile_template_is_not_probed_in_the_router(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    hostile = "{% if tools %}{{ 'a' * 10 ** 10 }}{% endif %}"
    body = {"messages": [USER], "tools": [WEATHER], "chat_template": hostile}
    error = (await api.refused("CreateChatCompletion", body)).error
    assert error["param"] == "chat_template"
    await api.chat(messages=[USER], tools=[WEATHER])
