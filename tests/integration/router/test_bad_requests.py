"""Bad input gets the right status and a message that names the field, and takes nothing else down."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import Any

import grpc
import pytest

from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import (
    GREETING,
    MODEL,
    Api,
    RefusedError,
    StartRouter,
    answer_text,
    fake_scheduler,
)
from tests.integration.router.fake_scheduler import Answer
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

INVALID = grpc.StatusCode.INVALID_ARGUMENT
USER = {"role": "user", "content": "Hello"}
VOCAB_SIZE = byte_level().get_vocab_size() + 8


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER]} | fields


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Hello"} | fields


# method, body, status, param, words of the message
BAD: list[tuple[str, Any, grpc.StatusCode, str | None, str]] = [
    ("CreateChatCompletion", b"not json", INVALID, None, "could not parse the JSON"),
    ("CreateChatCompletion", b"", INVALID, None, "could not parse the JSON"),
    ("CreateChatCompletion", b'{"temperature": NaN}', INVALID, None, "could not parse the JSON"),
    ("CreateChatCompletion", b'{"messages":' + b"[" * 20_000, INVALID, None, "recursion limit"),
    ("CreateChatCompletion", b"[1]", INVALID, None, "must be an object"),
    ("CreateChatCompletion", chat(messages="Hello"), INVALID, "messages", "expected an array"),
    ("CreateChatCompletion", chat(messages=[]), INVALID, "messages", "must not be empty"),
    ("CreateChatCompletion", chat(messages=[{"role": 7, "content": "x"}]), INVALID, "messages[0].role", "a string"),
    ("CreateChatCompletion", chat(model="gpt-9"), grpc.StatusCode.NOT_FOUND, "model", "`gpt-9` does not exist"),
    ("CreateChatCompletion", chat(max_tokens=-5), INVALID, "max_tokens", ">= 1, but got -5"),
    ("CreateChatCompletion", chat(max_tokens=10**9), INVALID, "max_tokens", "maximum context length is 256"),
    ("CreateChatCompletion", chat(max_tokens=10**400), INVALID, "max_tokens", "maximum context length is 256"),
    ("CreateChatCompletion", chat(max_completion_tokens=10**9), INVALID, "max_completion_tokens", "too large"),
    ("CreateChatCompletion", chat(temperature=9), INVALID, "temperature", "<= 2, but got 9"),
    ("CreateChatCompletion", chat(n=0), INVALID, "n", ">= 1, but got 0"),
    ("CreateChatCompletion", chat(n="two"), INVALID, "n", "expected an integer"),
    ("CreateChatCompletion", chat(messages=[USER] * 300), INVALID, "messages", "maximum context length is 256"),
    (
        "CreateChatCompletion",
        chat(messages=[{"role": "user", "content": "x" * 1_000_000}]),
        INVALID,
        "messages",
        "maximum context length is 256",
    ),
    ("CreateChatCompletion", chat(logit_bias={str(VOCAB_SIZE): 1}), INVALID, "logit_bias", "out of range"),
    ("CreateChatCompletion", chat(logit_bias={"x": 1}), INVALID, "logit_bias", "Expected a token id"),
    ("CreateChatCompletion", chat(stop_token_ids=[-1]), INVALID, "stop_token_ids", "out of range"),
    ("CreateChatCompletion", chat(tools=[{"type": "function"}]), INVALID, "tools[0].function", "Missing"),
    (
        "CreateCompletion",
        completion(prompt=[1, VOCAB_SIZE]),
        INVALID,
        "prompt[1]",
        f"token id {VOCAB_SIZE} is out of range",
    ),
    ("CreateCompletion", completion(prompt=[[1], [-1]]), INVALID, "prompt[1][0]", "token id -1 is out of range"),
    ("CreateCompletion", completion(prompt=[10**30]), INVALID, "prompt[0]", "out of range"),
    ("CreateCompletion", completion(prompt=[5] * 256), INVALID, "prompt", "maximum context length is 256"),
    ("CreateCompletion", completion(prompt=""), INVALID, "prompt", "has no tokens"),
    ("CreateCompletion", {"model": MODEL}, INVALID, "prompt", "Missing required parameter: 'prompt'"),
    ("Tokenize", {"model": MODEL}, INVALID, "prompt", "Exactly one of"),
    ("Tokenize", {"model": "none", "prompt": "x"}, grpc.StatusCode.NOT_FOUND, "model", "does not exist"),
    ("Detokenize", {"model": MODEL, "tokens": [VOCAB_SIZE]}, INVALID, "tokens[0]", "out of range"),
    ("Detokenize", {"model": MODEL, "tokens": "x"}, INVALID, "tokens", "expected an array"),
]


async def test_each_gets_its_status_and_names_its_field(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    for method, body, status, param, words in BAD:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        refusal = await api.refused(method, data)
        assert (refusal.status, refusal.error["param"]) == (status, param), (data[:80], refusal.error)
        assert words in refusal.error["message"], refusal.error
        assert refusal.error["type"] == "invalid_request_error"
    assert scheduler.submits == []


async def test_long_prompts_have_openai_s_code(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    refusal = await api.refused("CreateChatCompletion", chat(messages=[USER] * 300))
    assert refusal.error["code"] == "context_length_exceeded"


async def test_a_model_without_a_template_answers_no_chats(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(without_chat_template=True))
    refusal = await api.refused("CreateChatCompletion", chat())
    assert "no chat template; use /v1/completions" in refusal.error["message"]
    assert (await api.complete(max_tokens=100)).json["choices"][0]["text"] == GREETING


async def test_what_the_template_raises_is_said(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(chat_template="{{ raise_exception('roles must alternate') }}"))
    refusal = await api.refused("CreateChatCompletion", chat())
    assert refusal.status is INVALID
    assert "roles must alternate" in refusal.error["message"]


async def test_a_custom_role_reaches_the_template(start_router: StartRouter) -> None:
    template = (
        "{% for message in messages %}{% if message.role == 'god' %}{{ raise_exception('no gods here') }}{% endif %}"
        "{{ message.role }}: {{ message.content }}{% endfor %}"
    )
    api = await start_router(fake_scheduler(chat_template=template))
    critic = {"role": "critic", "content": [{"type": "text", "text": "x"}]}
    answer = await api.chat(messages=[USER, critic])
    assert answer.json["choices"][0]["message"]["content"] == GREETING
    refusal = await api.refused("CreateChatCompletion", chat(messages=[critic | {"role": "god"}]))
    assert (refusal.status, refusal.error["param"]) == (INVALID, "messages")
    assert "no gods here" in refusal.error["message"]


async def test_keys_are_asked_for_where_there_are_some(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("first", "second"))
    for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "first"),)):
        for method in ("CreateChatCompletion", "CreateCompletion", "Tokenize", "Detokenize"):
            # Before anything else is looked at.
            refusal = await api.refused(method, b"not json", metadata)
            assert refusal.status is grpc.StatusCode.UNAUTHENTICATED
            assert refusal.error["code"] == "invalid_api_key"
        with pytest.raises(RefusedError):
            await api.get("ListModels", metadata=metadata)
    reply = await api.post("CreateChatCompletion", chat(), (("authorization", "Bearer second"),))
    assert reply.json["choices"][0]["message"]["content"] == GREETING
    # Those who watch over the service need no key.
    assert (await api.get("GetHealth")).json == {"status": "ok"}
    assert (await api.get("GetMetrics")).messages


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "retry_after"),
    [
        (8, grpc.StatusCode.RESOURCE_EXHAUSTED, "3"),
        (14, grpc.StatusCode.UNAVAILABLE, "3"),
        (4, grpc.StatusCode.DEADLINE_EXCEEDED, "3"),
        (3, INVALID, "3"),
        (13, grpc.StatusCode.INTERNAL, "3"),
    ],
)
async def test_a_scheduler_s_refusal_before_the_first_token_is_the_status(
    start_router: StartRouter, code: int, status: grpc.StatusCode, retry_after: str, stream: bool
) -> None:
    error = scheduler_pb2.Error(code=code, message="the scheduler's reason", retry_after_ms=2500)
    api = await start_router(fake_scheduler(lambda submit, choice: Answer([], error=error)), scheduler_wait=0.2)
    refusal = await api.refused("CreateChatCompletion", chat(stream=stream))
    assert refusal.status is status
    assert refusal.error["message"] == "the scheduler's reason"
    assert refusal.retry_after == retry_after


async def test_an_error_after_the_first_token_is_an_event_and_no_done(start_router: StartRouter) -> None:
    ids = byte_level().encode("Hello").ids
    error = scheduler_pb2.Error(code=13, message="the logits are not numbers")
    api = await start_router(fake_scheduler(lambda submit, choice: Answer(ids, error=error)))
    reply = await api.chat(stream=True)
    *parts, last = b"".join(reply.messages).decode().removesuffix("\n\n").split("\n\n")
    assert len(parts) > 1
    body = json.loads(last.removeprefix("data: "))
    assert body["error"]["message"] == "the logits are not numbers"
    assert body["error"]["type"] == "server_error"
    refusal = await api.refused("CreateChatCompletion", chat())
    assert refusal.status is grpc.StatusCode.INTERNAL


async def test_more_requests_than_allowed_are_turned_away(start_router: StartRouter) -> None:
    resume = asyncio.Event()
    ids = [*byte_level().encode("Hello").ids, EOS_TOKEN_ID]
    scheduler = fake_scheduler(lambda submit, choice: Answer(ids, pause_after=0, resume=resume))
    api = await start_router(scheduler, max_num_requests=2)
    running = [asyncio.create_task(api.chat()) for _ in range(2)]
    await scheduler.wait_for(lambda: len(scheduler.submits) == 2)
    refusal = await api.refused("CreateChatCompletion", chat())
    assert refusal.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.retry_after == "1"
    # Three conversations would never have a place, so the client must not try again.
    batch = await api.refused("CreateChatCompletionBatch", {"messages": [chat()["messages"]] * 3})
    assert (batch.status, batch.error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "messages")
    resume.set()
    assert [reply.json["choices"][0]["message"]["content"] for reply in await asyncio.gather(*running)] == ["Hello"] * 2


async def test_a_thousand_bad_and_good_requests_leave_nothing_behind(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = fake_scheduler(answer_text(GREETING, tokens_per_frame=8))
    api = await start_router(scheduler)
    pick = random.Random(7)
    limit = asyncio.Semaphore(32)

    async def good() -> None:
        stream, n = pick.random() < 0.5, pick.choice([1, 2])
        async with limit:
            reply = await api.chat(stream=stream, n=n)
        if stream:
            texts = dict.fromkeys(range(n), "")
            for event in reply.events:
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content", "")
            assert texts == dict.fromkeys(range(n), GREETING)
        else:
            assert [choice["message"]["content"] for choice in reply.json["choices"]] == [GREETING] * n

    async def bad() -> None:
        method, body, status, _, _ = pick.choice([case for case in BAD if len(case[1]) < 10_000])
        async with limit:
            refusal = await api.refused(method, body)
        assert refusal.status is status

    async def gone() -> None:
        async with limit:
            await _start_and_leave(api)

    await asyncio.gather(*(pick.choice([good, good, bad, gone])() for _ in range(1000)))
    await scheduler.wait_for(lambda: scheduler.num_running == 0)
    while api.router.generator.num_requests:
        await api.get("GetHealth")
    assert api.router.placement.num_parked == 0
    assert [connection.num_sequences for connection in api.router.placement.connections] == [0]
    assert (await api.chat()).json["choices"][0]["message"]["content"] == GREETING
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    # grpc's poller may still have something for the event loop of a test before, which is closed.
    assert [message for message in messages if "PollerCompletionQueue" not in message] == []


async def _start_and_leave(api: Api) -> None:
    from google.api.httpbody_pb2 import HttpBody

    call = api.stub.CreateChatCompletion(HttpBody(data=json.dumps(chat(stream=True)).encode()))
    await call.read()
    call.cancel()


async def test_a_value_that_would_arrive_as_zero_is_refused(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    refusal = await api.refused("CreateChatCompletion", chat(repetition_penalty=1e-50))
    assert refusal.status is INVALID
    assert refusal.error["param"] == "repetition_penalty"
    assert not scheduler.submits
