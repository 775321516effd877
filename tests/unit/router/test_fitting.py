"""Which turns of a conversation that is too long are dropped, and how many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.chat.fitting import encode_plan, fit, messages_from, possible_starts
from services.router.chat.forms import FormChoice
from services.router.chat.plan import ChatPlan, plan_chat
from services.router.chat.request import ChatRequest, Overflow
from services.router.chat.tools import Tool, check_tool_messages
from services.router.errors import ApiError, ErrorKind
from services.router.generation.options import GenerationOptions
from services.router.limits import text_size
from services.router.model import ModelInfo, ServedModel
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.integration.router.small_tokenizers import byte_level, tokenizer_config

SYSTEM = {"role": "system", "content": "S"}
TEMPLATE = "{% for message in messages %}{{ message.content }}|{% endfor %}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, *calls: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    made = [{"id": call, "type": "function", "function": function} for call in calls]
    return {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": f"r{call}"}


def texts(messages: Sequence[dict[str, Any]]) -> str:
    return " ".join(message["content"] for message in messages)


CALLS = [
    SYSTEM, user("u1"), answer("a1", "1"), result("1"), answer("b1"), user("u2"), answer("a2", "2", "3"), result("2"),
    result("3"), {"role": "developer", "content": "D"}, answer("b2", "4"), result("4"),
]  # fmt: skip


def test_turns_are_dropped_first_and_then_the_steps_of_the_last_turn() -> None:
    assert [texts(messages_from(CALLS, start)) for start in [0, *possible_starts(CALLS)]] == [
        "S u1 a1 r1 b1 u2 a2 r2 r3 D b2 r4",
        "S u1 a1 r1 b1 u2 a2 r2 r3 D b2 r4",
        "S u2 a2 r2 r3 D b2 r4",
        "S u2 a2 r2 r3 D b2 r4",
        "S u2 D b2 r4",
    ]


@pytest.mark.parametrize(
    ("messages", "shortest"),
    [
        ([user("u1")], "u1"),
        ([SYSTEM], "S"),
        ([answer("a0"), user("u1")], "u1"),
        ([user("u1"), user("u2")], "u2"),
        ([user("u1"), answer("a1")], "u1 a1"),
        ([answer("a1", "1"), result("1"), answer("a2", "2"), result("2")], "a2 r2"),
        ([user("u1"), answer("a1", "1"), user("u2"), result("1")], "u2"),
    ],
    ids=["one message", "no turn", "an answer first", "users", "an answer last", "no user", "a late result"],
)
def test_what_always_stays(messages: list[dict[str, Any]], shortest: str) -> None:
    assert texts(messages_from(messages, [0, *possible_starts(messages)][-1])) == shortest


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 3)), min_size=1)
)  # fmt: skip
def test_a_shortened_conversation_is_valid(drawn: list[tuple[str, int]]) -> None:
    messages: list[dict[str, Any]] = []
    made: set[str] = set()
    for index, (role, number) in enumerate(drawn):
        call = str(number)
        made |= {call} if role == "assistant" else set()
        message = {"system": SYSTEM, "user": user(str(index)), "assistant": answer("", call), "tool": result(call)}[
            role
        ]
        if role != "tool" or call in made:
            messages.append(message)
    check_tool_messages(messages)
    users = [message for message in messages if message["role"] == "user"]
    for start in possible_starts(messages):
        kept = messages_from(messages, start)
        check_tool_messages(kept)
        assert kept.count(SYSTEM) == messages.count(SYSTEM)
        assert [message for message in kept if message["role"] == "user"][-1:] == users[-1:]
        assert kept


class CountedTokenizer(Tokenizer):
    """Takes note of the texts that it encodes."""

    def __init__(self, template: str) -> None:
        super().__init__(
            byte_level().to_str().encode(), json.dumps(tokenizer_config(template)).encode(), TextThreads(1)
        )
        self.encoded: list[str] = []

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        params: Sequence[str] = (),
        *,
        prefix: str = "",
    ) -> list[list[int]]:
        self.encoded += texts
        return await super().encode(texts, add_special_tokens, params, prefix=prefix)


def model_of(max_model_len: int, template: str = TEMPLATE) -> ServedModel:
    info = ModelInfo("m", (), max_model_len, 512, frozenset({2}), SamplingParams(), "", 0, "", "")
    return ServedModel(info, CountedTokenizer(template), 0)


async def plan_of(
    messages: list[dict[str, Any]], model: ServedModel, max_tokens: int | None = None, **kwargs: Any
) -> ChatPlan:
    options = GenerationOptions(SamplingParams(), StopConditions(max_tokens))
    request = ChatRequest(None, messages, options, overflow=Overflow.DROP_OLDEST, messages_param="input", **kwargs)
    return await plan_chat(request, model, FormChoice())


def turns(number: int) -> list[dict[str, Any]]:
    """Each turn has eight tokens, the system message two."""
    return [SYSTEM, *(message for n in range(number) for message in (user(f"u{n:02}"), answer(f"a{n:02}")))]


@pytest.mark.parametrize(("max_tokens", "num_turns"), [(None, 3), (1, 3), (5, 3), (6, 2), (14, 1), (21, 1)])
async def test_no_more_turns_are_dropped_than_necessary(max_tokens: int | None, num_turns: int) -> None:
    model = model_of(2 + 3 * 8 + 5)
    plan, prompt = await fit(await plan_of(turns(20), model, max_tokens), model)
    assert len(prompt) == 2 + num_turns * 8
    assert plan.messages == [SYSTEM, *turns(20)[-2 * num_turns :]]
    assert plan.request.messages == plan.messages


async def test_a_conversation_that_fits_stays_whole() -> None:
    model = model_of(1000)
    plan = await plan_of(turns(20), model)
    assert (await fit(plan, model))[0] is plan
    assert len(model.tokenizer.encoded) == 1  # type: ignore[attr-defined]


async def test_the_number_of_turns_is_found_by_bisection() -> None:
    model = model_of(2000)
    await fit(await plan_of(turns(1000), model), model)
    assert len(model.tokenizer.encoded) <= 11  # type: ignore[attr-defined]


async def test_a_conversation_that_is_too_long_to_tokenize_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(100)
    monkeypatch.setattr(text_size, "MAX_TEXT_BYTES", 200)
    monkeypatch.setattr(model.tokenizer, "max_token_chars", 1_000_000)
    _, prompt = await fit(await plan_of(turns(100), model), model)
    assert len(prompt) == 2 + 12 * 8


async def test_what_does_not_fit_at_its_shortest_is_refused_or_counted() -> None:
    model = model_of(100)
    plan = await plan_of([*turns(20), user("x" * 2000)], model)
    with pytest.raises(ApiError) as caught:
        await fit(plan, model)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.CONTEXT_LENGTH, "input")
    _, prompt = await fit(plan, model, checks_length=False)
    assert len(prompt) == 2 + 2001


async def test_an_error_of_the_template_is_reported() -> None:
    model = model_of(100, "{{ raise_exception('No.') }}")
    with pytest.raises(ApiError) as caught:
        await fit(await plan_of(turns(20), model), model)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


async def test_tools_that_the_system_message_describes_stay_described() -> None:
    model = model_of(400)
    plan, prompt = await fit(await plan_of(turns(50), model, tools=(Tool("f"),)), model)
    assert prompt == await encode_plan(plan, model)
    system, first, *_ = plan.messages
    assert system["content"].startswith("S\n\nYou can call these functions.")
    assert first["role"] == "user"
    assert 0 < len(plan.messages) - 1 < 100


async def test_a_conversation_of_a_request_without_truncation_is_not_shortened() -> None:
    model = model_of(100)
    request = ChatRequest(None, turns(50), GenerationOptions(SamplingParams(), StopConditions()))
    plan = await plan_chat(request, model, FormChoice())
    shortest, prompt = await fit(plan, model, checks_length=False)
    assert (shortest, len(prompt)) == (plan, 2 + 50 * 8)
