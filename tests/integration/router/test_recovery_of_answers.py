"""Whatever a router makes of tokens, it goes on with it when its scheduler is lost, after any token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.scheduler.v1 import scheduler_pb2
from services.router.dispatch import scheduler_connection
from tests.integration.router.conftest import Api, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, Script
from tests.integration.router.small_tokenizers import byte_level
from tests.integration.router.test_tools import QWEN, WEATHER, gathered

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
MESSAGE = f"<think>Two cities: 👨‍👩‍👧‍👦.</think>I look.\n{CALL}"
BODIES: dict[str, dict[str, Any]] = {
    "reasoning and calls": {"tools": [WEATHER]},
    "choices with log probabilities": {"n": 2, "logprobs": True, "top_logprobs": 2},
    "stop string": {"stop": ["no such thing", "look.\n<tool"], "logprobs": True},
    "usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


class Break(asyncio.Event):
    """Whoever comes to wait for it takes the scheduler's streams down."""

    def __init__(self, scheduler: FakeScheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    async def wait(self) -> Any:
        await self._scheduler.break_streams()
        return await super().wait()


def breaking(scheduler: FakeScheduler, undisturbed: Script, num_tokens: int) -> Script:
    """The same answers, but every stream breaks when a choice has so many more tokens than before."""

    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        answer = undisturbed(submit, choice)
        answer.pause_after, answer.resume = len(choice.output_token_ids) // 4 + num_tokens, Break(scheduler)
        return answer

    return script


@pytest.fixture
def disturbed(monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """A scheduler that is lost after each token; the router comes back to it at once."""
    monkeypatch.setattr(scheduler_connection, "_FIRST_BACKOFF_SECONDS", 0.001)
    scheduler = fake_scheduler(chat_template=QWEN, max_model_len=4096)
    scheduler.script = breaking(scheduler, answer_text(MESSAGE), num_tokens=1)
    return scheduler


def told(events: list[Any]) -> Any:
    """But for what names this answer alone, and what was found in a cache."""
    completion = gathered(events)
    for choice in completion.choices:
        for call in choice.message.tool_calls or []:
            call.id = ""
    usage = completion.usage and completion.usage.completion_tokens
    return usage, [choice.model_dump() for choice in completion.choices]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_stream_says_the_same_after_a_loss_at_each_token(
    start_router: StartRouter, disturbed: FakeScheduler, body: dict[str, Any]
) -> None:
    calm = await start_router(fake_scheduler(answer_text(MESSAGE), chat_template=QWEN, max_model_len=4096))
    expected = await calm.chat(stream=True, **body)
    api = await start_router(disturbed)
    reply = await api.chat(stream=True, **body)
    assert told(reply.events) == told(expected.events)
    assert len(disturbed.submits) > 30, "it was to be lost again and again"


async def test_a_call_has_one_id_and_its_name_once(start_router: StartRouter, disturbed: FakeScheduler) -> None:
    api = await start_router(disturbed)
    events = (await api.chat(stream=True, tools=[WEATHER])).events
    calls = [call for event in events for choice in event["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls if call.get("id")] == [0]
    assert "".join(call["function"].get("name") or "" for call in calls) == "get_weather"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Köln"}'


async def completed(api: Api, body: dict[str, Any]) -> list[Any]:
    choices = [choice for event in (await api.complete(stream=True, **body)).events for choice in event["choices"]]
    columns: list[Any] = [["", []] for _ in range(2)]
    for choice in choices:
        columns[choice["index"]][0] += choice["text"]
        columns[choice["index"]][1] += (choice["logprobs"] or {}).get("token_logprobs", [])
    return columns


async def test_an_echo_has_each_token_s_log_probability_once(
    start_router: StartRouter, disturbed: FakeScheduler
) -> None:
    body = {"prompt": "Hello, world!", "echo": True, "logprobs": 1, "n": 2, "max_tokens": 30}
    calm = await start_router(fake_scheduler(answer_text(MESSAGE)))
    expected = await completed(calm, body)
    assert len(expected[0][1]) == len(byte_level().encode("Hello, world!").ids) + 30
    api = await start_router(disturbed)
    assert await completed(api, body) == expected
    assert len(disturbed.submits) > 20
