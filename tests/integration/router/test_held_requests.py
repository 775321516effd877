"""While an answer is generated or waits for its client, the router keeps none of the request that it does not need."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import inference_pb2
from quire.kserve.v1 import kserve_pb2
from services.router.limits.large_bodies import LARGE_BODY_BYTES
from tests.fakes.waiting import until
from tests.integration.router.conftest import MODEL, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer
from tests.integration.router.test_embeddings import embedding_scheduler
from tests.integration.router.test_other_apis import service_of

LONG = "a" * (8 * LARGE_BODY_BYTES)
# What no API knows. In a message of protobuf's, a field of a number that it does not have.
IGNORED = {"ignored": LONG, "also_ignored": [{"text": LONG}]}
UNKNOWN_FIELD = inference_pb2.GenerateRequest(text=LONG).SerializeToString().replace(b"\x12", b"\xfa\x7f", 1)
MESSAGES = [{"role": "user", "content": "Hello"}]


def http(method: str, **body: Any) -> tuple[str, bytes]:
    data = json.dumps({"model": MODEL} | body | IGNORED).encode()
    return f"/quire.{service_of(method)}/{method}", HttpBody(data=data).SerializeToString()


def typed(method: str, message: Any) -> tuple[str, bytes]:
    return f"/quire.inference.v1.InferenceService/{method}", message.SerializeToString() + UNKNOWN_FIELD


def kserve(method: str, **body: Any) -> tuple[str, bytes]:
    message = getattr(kserve_pb2, f"{method.removesuffix('Stream')}Request")(model=MODEL)
    # It ignores nothing but spaces.
    message.body.data = json.dumps(body).encode() + b" " * len(LONG)
    return f"/quire.kserve.v1.KserveService/{method}", message.SerializeToString()


GENERATING = {
    "chat": http("CreateChatCompletion", messages=MESSAGES, user=LONG),
    "a streamed chat": http("CreateChatCompletion", messages=MESSAGES, stream=True),
    "chats": http("CreateChatCompletionBatch", messages=[MESSAGES, MESSAGES]),
    "completion": http("CreateCompletion", prompt="Hello", stream=True),
    "invocation": http("CreateInvocation", prompt="Hello"),
    "response": http("CreateResponse", input="Hello"),
    "Anthropic's": http("CreateMessage", messages=MESSAGES, max_tokens=5),
    "Ollama's chat": http("Chat", messages=MESSAGES),
    "Ollama's raw": http("Generate", prompt="Hello", raw=True),
    "Triton's": kserve("Generate", text_input="Hello"),
    "Triton's stream": kserve("GenerateStream", text_input="Hello"),
    "typed": typed("Generate", inference_pb2.GenerateRequest(text="Hello")),
    "a typed chat": typed(
        "Chat", inference_pb2.ChatRequest(messages=[inference_pb2.ChatMessage(role="user", content="Hello")])
    ),
}
EMBEDDING = {
    "embedding": http("CreateEmbedding", input="Hello"),
    "Cohere's": http("CreateCohereEmbedding", texts=["Hello"]),
    "score": http("CreateScore", text_1="Hello", text_2="Hallo"),
    "rerank": http("CreateRerank", query="Hello", documents=["Hallo"]),
    "Ollama's embedding": http("Embed", input="Hello"),
    "a typed score": typed("Score", inference_pb2.ScoreRequest(text_1=["Hello"], text_2=["Hallo"])),
}


def large_values(but: bytes) -> list[object]:
    """Long texts and bytes that some object has, but for that one, and large messages."""
    found: list[object] = []
    for one in gc.get_objects():
        if isinstance(one, HttpBody) and len(one.data) >= len(LONG):
            found.append(type(one))
        found += [(type(one), len(value)) for value in gc.get_referents(one) if is_long(value) and value is not but]
    return found


def is_long(value: object) -> bool:
    return isinstance(value, str | bytes) and len(value) >= len(LONG) and value is not LONG


@pytest.mark.parametrize("name", [*GENERATING, *EMBEDDING])
async def test_a_request_under_way_keeps_nothing_of_what_is_ignored(start_router: StartRouter, name: str) -> None:
    if name in EMBEDDING:
        scheduler, (path, body) = embedding_scheduler(), EMBEDDING[name]
        scheduler.script = lambda submit, choice: Answer([], embedding=bytes(4), pause_after=0)
    else:
        scheduler, (path, body) = fake_scheduler(answer_text("Hello", pause_after=0)), GENERATING[name]
    api = await start_router(scheduler)
    # What there is already is not looked at.
    gc.freeze()
    try:
        call = api.channel.unary_stream(path)(body)
        submitted = asyncio.create_task(scheduler.wait_for(lambda: len(scheduler.submits) > 0))
        answered = asyncio.create_task(call.read())
        await asyncio.wait([submitted, answered], return_when=asyncio.FIRST_COMPLETED)
        # An error, if anything is.
        assert not answered.done() or not await answered
        # A thread drops the work that it has done a moment after its result is there.
        await until(lambda: not large_values(body))
    finally:
        gc.unfreeze()
    call.cancel()
    await asyncio.wait([answered])
