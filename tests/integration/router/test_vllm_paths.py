"""vLLM's paths beside OpenAI's: several conversations in one request, /invocations, /tokenizer_info and /ping."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from typing import Any

import grpc
import pytest

from quire.documents.v1 import documents_pb2, documents_pb2_grpc
from quire.inference.v1 import sampling_pb2
from quire.openai.v1 import openai_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.apis.openai.body import GenerationBody
from services.router.constraints import resolution as constraints
from services.router.constraints.grammar_checker import GrammarChecks
from services.router.generation import logprob_count, options
from services.router.http.chat_batch import MAX_PREPARING
from services.router.template.chat_template import ChatTemplate
from tests.fakes.waiting import HANG_S, until
from tests.integration.router.conftest import GREETING, MODEL, RefusedError, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, unpack
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, EOS_TOKEN_ID, byte_level

INVALID = grpc.StatusCode.INVALID_ARGUMENT
BATCH = "CreateChatCompletionBatch"
THINKS = CHAT_TEMPLATE + "{% if false %}<think></think>{% endif %}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def repeats(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
    """As many tokens as the prompt has, modulo 7."""
    number = len(unpack(submit.prompt_token_ids)) % 7
    ids = byte_level().encode("x" * number + "!", add_special_tokens=False).ids
    return Answer([*ids, EOS_TOKEN_ID], reason=sampling_pb2.FINISH_REASON_STOP)


CONVERSATIONS = [[user("a")], [user("Hello"), {"role": "assistant", "content": "Hi"}, user("b c d")], [user("zz")]]


async def test_each_conversation_of_a_batch_has_its_own_answer(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(repeats)
    api = await start_router(scheduler)
    options = {"logprobs": True, "return_token_ids": True, "max_completion_tokens": 20}
    batch = (await api.post(BATCH, {"model": MODEL, "messages": CONVERSATIONS} | options)).json
    alone = [(await api.chat(messages=messages, **options)).json for messages in CONVERSATIONS]
    # To the scheduler, a batch is one request: it takes no more of the reserved places than any other.
    *batched, first, second, third = (submit.turn_id for submit in scheduler.submits)
    assert len(batched) == 3
    assert len({*batched}) == 1
    assert len({batched[0], first, second, third}) == 4
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    for choice, single in zip(batch["choices"], alone, strict=True):
        assert choice == single["choices"][0] | {"index": choice["index"]}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(single["usage"][name] for single in alone)
    assert "prompt_token_ids" not in batch
    assert "prompt_logprobs" not in batch


async def test_a_batch_that_no_scheduler_can_hold_names_its_conversations(start_router: StartRouter) -> None:
    error = scheduler_pb2.Error(code=3, message="at most 2 sequences per request", field="choices")
    api = await start_router(fake_scheduler(lambda submit, choice: Answer([], error=error)))
    refusal = await api.refused(BATCH, {"messages": CONVERSATIONS})
    assert (refusal.status, refusal.error["param"]) == (INVALID, "messages")


async def test_a_batch_tells_reasoning_apart(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("<think>Hm.</think>So."), chat_template=THINKS))
    batch = (await api.post(BATCH, {"messages": [[user("a")], [user("b")]]})).json
    for choice in batch["choices"]:
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", "So.")
    assert batch["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [user("a")]}, "messages[0]"),
        ({"messages": [[user("a")], []]}, "messages[1]"),
        ({"messages": [[user("a")], [user("b"), {"role": "user"}]]}, "messages[1][1].content"),
        ({"messages": [[user("a")], [{"role": "tool", "content": "x"}]]}, "messages[1][0].tool_call_id"),
        ({"messages": [[user("a")], [user("x" * 2000)]]}, "messages[1]"),
        ({"messages": [[user("a")]], "stream": True}, "stream"),
        ({"messages": [[user("a")]], "n": 2}, "n"),
        ({"messages": [[user("a")]], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": [[user("a")]], "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": [[user("a")]], "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"messages": [[user("a")]] * 256, "logprobs": True, "top_logprobs": 20}, "max_tokens"),
        (
            {"messages": [[user("a")]] * 256, "logprobs": True, "top_logprobs": 20, "max_completion_tokens": 100},
            "max_completion_tokens",
        ),
        ({"messages": [[user("a")]], "temperature": 9}, "temperature"),
    ],
)
async def test_what_is_wrong_with_a_batch_is_named(
    start_router: StartRouter, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprob_count, "MAX_LOGPROBS_OF_ANSWER", 2**19)
    api = await start_router(fake_scheduler())
    refusal = await api.refused(BATCH, {"model": MODEL} | body)
    assert (refusal.status, refusal.error["param"]) == (INVALID, param)


async def test_a_batch_leaves_room_for_other_requests(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, renders = threading.Event(), ChatTemplate.render

    def held(self: ChatTemplate, messages: Any, **options: Any) -> str:
        if len(messages[0]["content"]) > 2000:
            assert gate.wait(HANG_S)
        return renders(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", held)
    api = await start_router(fake_scheduler(max_model_len=8192))
    threads = (await api.router.placement.models.find(MODEL)).tokenizer.threads
    long = [user("x" * 3000)]
    batch = asyncio.ensure_future(api.post(BATCH, {"messages": [long] * 256, "max_tokens": 2}))
    try:
        await until(lambda: threads.num_pending == MAX_PREPARING)
        neighbour = asyncio.ensure_future(api.chat(messages=long, max_tokens=2))
        await until(lambda: threads.num_pending == MAX_PREPARING + 1)
        short = await api.chat(messages=[user("x")], max_tokens=2)
    finally:
        gate.set()
    for reply, num_choices in ((short, 1), (await neighbour, 1), (await batch, 256)):
        assert len(reply.json["choices"]) == num_choices


async def test_what_a_batch_s_conversations_share_is_worked_out_once(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        counted = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return counted(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (GenerationBody, "options"), (GrammarChecks, "check"), (constraints, "_bad_word_token_ids"),
        (options, "check_token_ids"),
    ):  # fmt: skip
        count(owner, name)
    scheduler = fake_scheduler(answer_text('{"a": 1}'), chat_template=THINKS)
    api = await start_router(scheduler)
    shared = {
        "bad_words": ["one", "two"],
        "logit_bias": {"5": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    }
    reply = await api.post(BATCH, {"messages": [[user(f"a{index}")] for index in range(40)]} | shared)
    assert [choice["message"]["content"] for choice in reply.json["choices"]] == ['{"a": 1}'] * 40
    assert counts == {"options": 1, "check": 1, "_bad_word_token_ids": 1, "check_token_ids": 1}
    assert len({submit.constraints.SerializeToString() for submit in scheduler.submits}) == 1
    assert scheduler.submits[0].constraints.grammar


async def test_a_long_answer_to_a_batch_comes_in_pieces(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        return Answer([5] * 100)

    api = await start_router(fake_scheduler(script))
    options = {"max_tokens": 100, "logprobs": True, "top_logprobs": 2}
    reply = await api.post(BATCH, {"messages": [[user("a")]] * 16} | options)
    assert len(reply.messages) > 2
    alone = (await api.chat(messages=[user("a")], **options)).json["choices"][0]
    choices = json.loads(b"".join(reply.messages))["choices"]
    assert choices == [alone | {"index": index} for index in range(16)]


async def test_a_conversation_that_fails_ends_the_others(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        if len(unpack(submit.prompt_token_ids)) < 30:
            return Answer([5], pause_after=0)
        error = scheduler_pb2.Error(message="It broke.")
        return Answer([5], reason=sampling_pb2.FINISH_REASON_ERROR, error=error)

    scheduler = fake_scheduler(script)
    api = await start_router(scheduler)
    refusal = await api.refused(BATCH, {"model": MODEL, "messages": [[user("a")], [user("a " * 30)]]})
    assert "broke" in refusal.error["message"]
    await scheduler.wait_for(lambda: len(scheduler.aborted) == 1)


async def test_an_invocation_is_a_chat_or_a_completion(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    chat = (await api.post("CreateInvocation", {"model": MODEL, "messages": [user("Hello")]})).json
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", GREETING)
    streamed = await api.post("CreateInvocation", {"model": MODEL, "prompt": "Hello", "max_tokens": 99, "stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed.events) == GREETING


async def test_what_an_invocation_asks_for_must_be_told(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    key = (("authorization", "Bearer secret"),)
    refusal = await api.refused("CreateInvocation", {"model": MODEL}, key)
    assert refusal.status is INVALID
    assert "'messages', 'prompt', 'input'" in refusal.error["message"]
    refusal = await api.refused("CreateInvocation", b"{", key)
    assert "could not parse" in refusal.error["message"]
    refusal = await api.refused("CreateInvocation", {"messages": "x"}, key)
    assert refusal.error["param"] == "messages"
    refusal = await api.refused("CreateInvocation", {"messages": [user("x")]})
    assert refusal.status is grpc.StatusCode.UNAUTHENTICATED


async def test_the_tokenizer_s_configuration_is_told(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    key = (("authorization", "Bearer secret"),)
    info = (await api.get("GetTokenizerInfo", metadata=key)).json
    assert (info["chat_template"], info["bos_token"]) == (CHAT_TEMPLATE, "<s>")
    assert isinstance(info["tokenizer_class"], str)
    again = await api.get("GetTokenizerInfo", openai_pb2.GetTokenizerInfoRequest(model=MODEL), metadata=key)
    assert again.json == info
    with pytest.raises(RefusedError) as caught:
        await api.get("GetTokenizerInfo", openai_pb2.GetTokenizerInfoRequest(model="other"), metadata=key)
    assert "`other` does not exist" in caught.value.error["message"]


async def test_a_ping_needs_no_key(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    assert (await api.get("GetPing")).json == {"status": "ok"}


async def test_the_document_of_a_router_behind_a_prefix_names_it(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), root_path="/llm")
    stub: Any = documents_pb2_grpc.DocumentServiceStub(api.channel)
    described = json.loads((await stub.GetOpenApi(documents_pb2.GetOpenApiRequest())).data)
    assert described["servers"] == [{"url": "/llm"}]
