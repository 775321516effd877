"""Messages in channels through a whole router: what clients get of each channel, in every API, and what a model is held
to.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from services.router.chat.parsers.harmony import TOKENS
from tests.chat_templates.published import ours
from tests.integration.router import conftest
from tests.integration.router.conftest import MODEL, StartRouter, answer_text
from tests.integration.router.fake_scheduler import FakeScheduler, unpack
from tests.integration.router.small_tokenizers import byte_level
from tests.integration.router.test_other_apis import post
from tests.integration.router.test_tools import TIME, WEATHER, answers, calls_of, prompt_of

TEMPLATE = ours()["channels"]
NEXT = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Where is it?{NEXT}"
PREAMBLE = f"<|channel|>commentary<|message|>I look.{NEXT}"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Köln"}'
FINAL = "<|channel|>final<|message|>"
USER = {"role": "user", "content": "Hi"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@functools.cache
def with_tokens() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens(list(TOKENS))
    return tokenizer


TOKENIZERS = pytest.mark.parametrize("tokenizer", [with_tokens(), byte_level()], ids=["tokens", "text"])


def scheduler_of(text: str, tokenizer: Tokenizer) -> FakeScheduler:
    script = answer_text(text, tokenizer)
    return conftest.fake_scheduler(script, tokenizer=tokenizer, chat_template=TEMPLATE, max_model_len=4096)


@TOKENIZERS
async def test_each_channel_has_its_field(start_router: StartRouter, tokenizer: Tokenizer) -> None:
    for text, content, calls, thoughts in (
        (f"{THOUGHT}{FINAL}In Germany.", "In Germany.", [], THOUGHT),
        (f"{THOUGHT}{PREAMBLE}{CALL}", "I look.", [("get_weather", {"city": "Köln"})], THOUGHT),
        (f"{THOUGHT}{PREAMBLE}<|channel|>analysis<|message|>So.{NEXT}{FINAL}Yes.", "I look.\nYes.", [], None),
        (f"{FINAL}Yes.", "Yes.", [], ""),
        ("Yes.", "Yes.", [], ""),
    ):
        api = await start_router(scheduler_of(text, tokenizer))
        for completion in await answers(api, tools=[WEATHER, TIME]):
            message = completion.choices[0].message
            assert message.content == content
            assert calls_of(completion) == calls
            assert completion.choices[0].finish_reason == ("tool_calls" if calls else "stop")
            reasoning = (message.model_extra or {}).get("reasoning")
            assert reasoning == ("Where is it?\nSo." if thoughts is None else "Where is it?" if thoughts else None)
            assert completion.usage is not None
            assert completion.usage.completion_tokens_details is not None
            if thoughts is not None:
                # The last message's <|start|>assistant is not the reasoning's.
                ids = tokenizer.encode(thoughts.removesuffix("<|start|>assistant")).ids
                count = completion.usage.completion_tokens_details.reasoning_tokens
                assert abs((count or 0) - len(ids)) <= (1 if tokenizer is byte_level() else 0)


@TOKENIZERS
async def test_every_api_has_them(start_router: StartRouter, tokenizer: Tokenizer) -> None:
    scheduler = scheduler_of(f"{THOUGHT}{PREAMBLE}{CALL}", tokenizer)
    api = await start_router(scheduler)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "get_weather", "parameters": schema}
    for method, body in (
        ("CreateMessage", {"messages": [USER], "max_tokens": 200, "thinking": {"type": "adaptive"},
                           "tools": [{"name": "get_weather", "input_schema": schema}]}),
        ("CreateResponse", {"input": "x", "tools": [function | {"type": "function"}]}),
        ("Chat", {"messages": [USER], "tools": [{"type": "function", "function": function}]}),
    ):  # fmt: skip
        for stream in (False, True):
            reply = b"".join(await post(api, method, {"model": MODEL, "stream": stream, **body})).decode()
            for text in ("get_weather", "K", "ln"):
                assert text in reply
            assert "<|" not in reply
            assert "analysis" not in reply
            assert "commentary" not in reply.replace('"phase":"commentary"', "")


async def test_without_tools_headers_are_read_all_the_same(start_router: StartRouter) -> None:
    for body in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        api = await start_router(scheduler_of(f"{THOUGHT}{CALL}<|end|><|start|>assistant{FINAL}Yes.", with_tokens()))
        for completion in await answers(api, **body):
            assert completion.choices[0].message.content == "Yes."
            assert not completion.choices[0].message.tool_calls
            assert (completion.choices[0].message.model_extra or {})["reasoning"] == 'Where is it?\n{"city": "Köln"}'


async def test_a_continued_message_is_its_rest(start_router: StartRouter) -> None:
    scheduler = scheduler_of(" to=be.<|end|>", with_tokens())
    api = await start_router(scheduler)
    messages = [USER, {"role": "assistant", "content": "So:"}]
    for completion in await answers(api, messages=messages, add_generation_prompt=False, continue_final_message=True):
        assert completion.choices[0].message.content == " to=be."
    ids = unpack(scheduler.submits[-1].prompt_token_ids)
    assert with_tokens().decode(ids, skip_special_tokens=False).endswith(f"<|start|>assistant{FINAL}So:")


@TOKENIZERS
async def test_a_structure_or_calls_that_are_asked_for_are_the_final_message(
    start_router: StartRouter, tokenizer: Tokenizer
) -> None:
    array = '[{"name": "get_time", "parameters": {}}]'
    bodies: tuple[tuple[dict[str, Any], str, str | None, list[Any]], ...] = (
        ({"response_format": FORMAT}, f'{FINAL}{{"x": 1}}', '{"x": 1}', []),
        ({"response_format": FORMAT, "tools": [WEATHER]}, f'{FINAL}{{"x": 1}}', '{"x": 1}', []),
        ({"response_format": FORMAT, "tools": [WEATHER]}, CALL, None, [("get_weather", {"city": "Köln"})]),
        ({"tools": [TIME], "tool_choice": "required"}, f"{FINAL}{array}", None, [("get_time", {})]),
    )
    for body, text, content, calls in bodies:
        scheduler = scheduler_of(f"{THOUGHT}{text}", tokenizer)
        api = await start_router(scheduler)
        for completion in await answers(api, **body):
            assert completion.choices[0].message.content == content
            assert calls_of(completion) == calls
        rules, *_ = json.loads(scheduler.submits[0].constraints.grammar)["grammars"]
        answer = "(final @structure | call)" if len(body) > 1 and "tool_choice" not in body else "final @structure"
        assert f"thoughts role)? {answer}\n" in rules["lark_grammar"]
        await api.chat(**body, reasoning_effort="none")
        rules, *_ = json.loads(scheduler.submits[-1].constraints.grammar)["grammars"]
        assert rules["lark_grammar"].startswith(f"start: {answer}\n")


async def test_a_budget_is_refused(start_router: StartRouter) -> None:
    api = await start_router(scheduler_of("", with_tokens()))
    refusal = await api.refused("CreateChatCompletion", {"messages": [USER], "thinking_token_budget": 5})
    assert refusal.error["param"] == "thinking_token_budget"
    assert "not a single token" in refusal.error["message"]


async def test_what_was_answered_can_be_sent_back(start_router: StartRouter) -> None:
    scheduler = scheduler_of(f"{THOUGHT}{PREAMBLE}{CALL}", byte_level())
    api = await start_router(scheduler)
    answer = (await api.chat(tools=[WEATHER])).json["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "Dry."}
    await api.chat(messages=[USER, answer, result], tools=[WEATHER])
    assert "<|channel|>analysis<|message|>Where is it?\nI look.<|end|><|start|>assistant to=functions.get_weather" in (
        prompt_of(scheduler)
    )
