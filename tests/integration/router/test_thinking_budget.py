"""What becomes of a request's limit to reasoning: the tokens that a worker forces, or why there is no limit."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody
from tokenizers import AddedToken, Tokenizer

from quire.anthropic.v1 import anthropic_pb2_grpc
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import MODEL, Api, StartRouter, fake_scheduler
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, byte_level

USER = {"role": "user", "content": "Hello"}
THINKS = CHAT_TEMPLATE + "{% if false %}<think></think>{% endif %}"
OPENS = (
    "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n{% if enable_thinking is false %}\n</think>"
    "{% endif %}"
)


def with_tags() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    return tokenizer


BEGIN, END = (with_tags().token_to_id(tag) for tag in ("<think>", "</think>"))


def limit_of(submit: scheduler_pb2.Submit) -> tuple[int, int, int | None] | None:
    """Budget, end and beginning."""
    constraints = submit.constraints
    if not constraints.HasField("thinking_budget"):
        return None
    begin = constraints.thinking_begin_token_id if constraints.HasField("thinking_begin_token_id") else None
    return constraints.thinking_budget, constraints.thinking_end_token_id, begin


async def ask_anthropic(api: Api, **body: Any) -> None:
    stub: Any = anthropic_pb2_grpc.AnthropicServiceStub(api.channel)
    data = json.dumps({"model": MODEL, "max_tokens": 20, "messages": [USER]} | body).encode()
    async for _ in stub.CreateMessage(HttpBody(data=data)):
        pass


@pytest.mark.parametrize(
    ("template", "budget", "limit"),
    [
        (THINKS, 5, (5, END, BEGIN)),
        (OPENS, 5, (5, END, None)),
        (OPENS, 0, (0, END, None)),
        (OPENS, -1, None),
        (OPENS, None, None),
    ],
)
async def test_a_budget_becomes_a_limit(
    start_router: StartRouter, template: str, budget: int | None, limit: tuple[int, int, int | None] | None
) -> None:
    scheduler = fake_scheduler(tokenizer=with_tags(), chat_template=template)
    api = await start_router(scheduler)
    await api.chat(thinking_token_budget=budget)
    assert limit_of(scheduler.submits[-1]) == limit
    await api.chat(thinking_token_budget=budget, n=2, response_format={"type": "json_object"})
    assert limit_of(scheduler.submits[-1]) == limit
    batch = {"messages": [[USER], [USER]], "thinking_token_budget": budget}
    await api.post("CreateChatCompletionBatch", batch)
    assert [limit_of(submit) for submit in scheduler.submits[-2:]] == [limit, limit]


async def test_anthropic_s_budget_becomes_a_limit(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(tokenizer=with_tags(), chat_template=OPENS)
    api = await start_router(scheduler)
    for thinking, limit in (
        ({"type": "enabled", "budget_tokens": 2048}, (2048, END, None)),
        ({"type": "enabled"}, None),
        ({"type": "adaptive"}, None),
    ):
        await ask_anthropic(api, thinking=thinking)
        assert limit_of(scheduler.submits[-1]) == limit


async def test_a_model_that_does_not_reason_takes_no_budget(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    refusal = await api.refused("CreateChatCompletion", {"messages": [USER], "thinking_token_budget": 5})
    assert (refusal.status, refusal.error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "thinking_token_budget")
    assert "does not reason" in refusal.error["message"]
    await api.chat(thinking_token_budget=-1)
    await ask_anthropic(api, thinking={"type": "enabled", "budget_tokens": 2048})
    assert limit_of(scheduler.submits[-1]) is None


async def test_tags_that_are_no_tokens_are_told_of(start_router: StartRouter) -> None:
    """Their pieces differ with the text around them, so no run of tokens tells where the reasoning ends."""
    api = await start_router(fake_scheduler(chat_template=THINKS))
    refusal = await api.refused("CreateChatCompletion", {"messages": [USER], "thinking_token_budget": 5})
    assert "not a single token" in refusal.error["message"]


async def test_where_thinking_is_switched_off_a_budget_limits_nothing(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(tokenizer=with_tags(), chat_template=OPENS)
    api = await start_router(scheduler)
    structure = {"type": "json_object"}
    kwargs = {"enable_thinking": False}
    await api.chat(thinking_token_budget=5, chat_template_kwargs=kwargs, response_format=structure)
    assert limit_of(scheduler.submits[-1]) is None


@pytest.mark.parametrize("budget", [-2, 2**31, "x"])
async def test_a_budget_is_a_number_of_tokens(start_router: StartRouter, budget: object) -> None:
    api = await start_router(fake_scheduler())
    refusal = await api.refused("CreateChatCompletion", {"messages": [USER], "thinking_token_budget": budget})
    assert refusal.error["param"] == "thinking_token_budget"
