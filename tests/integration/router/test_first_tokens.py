"""A stream's first event comes with the first token, also where that token has no text yet: clients measure the time to
the first token by it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.anthropic.v1 import anthropic_pb2_grpc
from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from quire.ollama.v1 import ollama_pb2_grpc
from quire.scheduler.v1 import scheduler_pb2
from tests.fakes.waiting import HANG_S
from tests.integration.router.conftest import MODEL, Api, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import Answer
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, EOS_TOKEN_ID, byte_level

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
HALF_A_CHARACTER = "龘"
THINKS = CHAT_TEMPLATE + "{% if false %}<think></think>{% endif %}"
CALLS = CHAT_TEMPLATE + "{% if tools %}<tool_call>{{ tool_calls }}{% endif %}"


class Held:
    """Answers whose first token is sent, and whose others wait."""

    def __init__(self, token_ids: list[int]) -> None:
        self.answer = Answer([*token_ids, EOS_TOKEN_ID], pause_after=1)

    def __call__(self, submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        return self.answer


def ids_of(text: str) -> list[int]:
    ids: list[int] = byte_level().encode(text, add_special_tokens=False).ids
    return ids


STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("CreateChatCompletion", {"messages": [USER]}),
    "chat with tools": ("CreateChatCompletion", {"messages": [USER], "tools": [TOOL]}),
    "completion": ("CreateCompletion", {"prompt": "Hello"}),
    "response": ("CreateResponse", {"input": "Hello"}),
    "message": ("CreateMessage", {"messages": [USER], "max_tokens": 9}),
    "Ollama's chat": ("Chat", {"messages": [USER]}),
    "Ollama's generate": ("Generate", {"prompt": "Hello"}),
    "Ollama's raw generate": ("Generate", {"prompt": "Hello", "raw": True}),
}


async def first_message(api: Api, method: str, body: dict[str, Any]) -> str:
    """The first one of a stream, which has nothing after it yet."""
    stubs: dict[str, Any] = {
        "CreateMessage": anthropic_pb2_grpc.AnthropicServiceStub(api.channel),
        "Chat": ollama_pb2_grpc.OllamaServiceStub(api.channel),
        "Generate": ollama_pb2_grpc.OllamaServiceStub(api.channel),
    }
    data = json.dumps({"model": MODEL, "stream": True} | body).encode()
    call = getattr(stubs.get(method, api.stub), method)(HttpBody(data=data))
    try:
        async with asyncio.timeout(HANG_S):
            message: HttpBody = await call.read()
            return str(message.data.decode())
    finally:
        call.cancel()


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("template", "text"),
    [(CHAT_TEMPLATE, HALF_A_CHARACTER), (THINKS, "<think>Hm"), (CALLS, "<tool_call>{}")],
    ids=["half a character", "a tag of reasoning", "a tag of a call"],
)
async def test_the_first_token_has_an_event(start_router: StartRouter, stream: str, template: str, text: str) -> None:
    ids = ids_of(text)
    assert len(ids) > 1
    api = await start_router(fake_scheduler(Held(ids), chat_template=template, max_model_len=1024))
    assert await first_message(api, *STREAMS[stream])


async def test_a_special_token_has_an_event(start_router: StartRouter) -> None:
    tokenizer = byte_level()
    special = next(token_id for token_id, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    assert special != EOS_TOKEN_ID
    api = await start_router(fake_scheduler(Held([special, *ids_of("x")]), max_model_len=1024))
    for method, body in STREAMS.values():
        assert await first_message(api, method, body)


async def test_what_the_first_event_of_each_api_says(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(Held(ids_of(HALF_A_CHARACTER)), max_model_len=1024))
    first = {stream: await first_message(api, *STREAMS[stream]) for stream in STREAMS}
    chunk = json.loads(first["chat"].removeprefix("data: "))
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    chunk = json.loads(first["completion"].removeprefix("data: "))
    assert (chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) == ("", None)
    assert first["response"].startswith("event: response.created")
    assert first["message"].startswith("event: message_start")
    assert json.loads(first["Ollama's chat"])["message"] == {"role": "assistant", "content": ""}
    assert json.loads(first["Ollama's generate"])["response"] == ""


async def test_content_is_null_while_it_may_become_something_else(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(Held(ids_of("<think>Hm")), chat_template=THINKS))
    chunk = json.loads((await first_message(api, *STREAMS["chat"])).removeprefix("data: "))
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": None}


async def test_the_typed_api_sends_the_first_token(start_router: StartRouter) -> None:
    ids = ids_of(HALF_A_CHARACTER)
    api = await start_router(fake_scheduler(Held(ids)))
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    message = inference_pb2.ChatMessage(role="user", content="Hello")
    for call in (
        stub.Generate(inference_pb2.GenerateRequest(model=MODEL, text="Hello")),
        stub.Chat(inference_pb2.ChatRequest(model=MODEL, messages=[message])),
    ):
        async with asyncio.timeout(HANG_S):
            reply: Any = await call.read()
        delta = reply.delta
        assert (list(delta.token_ids), delta.text) == (ids[:1], "")
        call.cancel()


async def test_no_event_comes_before_the_first_token(start_router: StartRouter) -> None:
    script = Held(ids_of("Hello"))
    script.answer.pause_after = 0
    scheduler = fake_scheduler(script)
    api = await start_router(scheduler)
    call = api.stub.CreateChatCompletion(
        HttpBody(data=json.dumps({"model": MODEL, "messages": [USER], "stream": True}).encode())
    )
    reading = asyncio.ensure_future(call.read())
    await scheduler.wait_for(lambda: len(scheduler.submits) == 1)
    # The round trip of another request is time enough for an event that is sent at once.
    await api.get("ListModels")
    assert not reading.done()
    script.answer.resume.set()
    assert b'"role":"assistant"' in (await reading).data
    call.cancel()
