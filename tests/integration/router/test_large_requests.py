"""A request that holds too much is refused in its API's own shape, with the field's name, before it is converted."""

from __future__ import annotations

import gc
import json
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from services.router.limits import text_size
from services.router.limits.json_bounds import MAX_CONTAINERS, MAX_FIELDS, MAX_ITEMS, MAX_STRINGS
from services.router.limits.large_bodies import LARGE_BODY_BYTES
from services.router.rpc.calls import Calls
from services.router.rpc.wire_bounds import MAX_WIRE_FIELDS
from shared.message_size import DEFAULT_MAX_BODY_BYTES
from tests.integration.router.conftest import MODEL, StartRouter, fake_scheduler
from tests.integration.router.test_other_apis import error_of, post, service_of
from tests.integration.router.test_tools import QWEN

USER = {"role": "user", "content": "Hello"}
FIELDS = {f"f{number}": 1 for number in range(MAX_FIELDS + 1)}
PARTS = [{"type": "text", "text": "a"}] * (MAX_CONTAINERS + 1)
MANY_PARTS = [{"role": "user", "content": PARTS}]


@pytest.mark.parametrize(
    ("method", "body", "param"),
    [
        ("CreateChatCompletion", {"messages": [USER], "logit_bias": FIELDS}, "logit_bias"),
        ("CreateChatCompletion", {"messages": [USER], "logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias"),
        ("CreateChatCompletion", {"messages": MANY_PARTS}, "messages[0].content"),
        ("CreateChatCompletion", {"messages": "a"} | FIELDS, f"f{MAX_FIELDS - 2}"),
        ("CreateChatCompletionBatch", {"messages": [MANY_PARTS]}, "messages[0][0].content"),
        ("CreateCompletion", {"prompt": [[7] * (MAX_ITEMS // 2), [7] * (MAX_ITEMS // 2 + 1)]}, "prompt[1]"),
        ("CreateCompletion", {"prompt": ["a"] * (MAX_STRINGS + 1)}, "prompt"),
        ("CreateEmbedding", {"input": [7] * (MAX_ITEMS + 1)}, "input"),
        ("CreateResponse", {"input": "Hello", "metadata": FIELDS}, "metadata"),
        ("CreateInvocation", {"messages": MANY_PARTS}, "messages[0].content"),
        ("CreateMessage", {"max_tokens": 1, "messages": MANY_PARTS}, "messages[0].content"),
        ("Chat", {"messages": [USER], "options": FIELDS}, "options"),
        ("CreateCohereEmbedding", {"texts": ["a"] * (MAX_STRINGS + 1)}, "texts"),
    ],
)
async def test_too_many_values_are_refused_by_name(
    start_router: StartRouter, method: str, body: dict[str, Any], param: str
) -> None:
    api = await start_router(fake_scheduler())
    status, error = await error_of(api, method, {"model": MODEL} | body)
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert f"'{param}'" in str(error)


async def test_what_was_refused_is_freed_without_a_collection(start_router: StartRouter) -> None:
    """grpc keeps the error of an ended call in a cycle. What the call held must not be in it: it may be megabytes."""
    api = await start_router(fake_scheduler())
    # The client's own message is made of bytes, so those of this type are the router's.
    body = HttpBody(data=json.dumps({"model": MODEL, "messages": MANY_PARTS}).encode()).SerializeToString()
    gc.collect()
    gc.disable()
    try:
        for method in ("CreateChatCompletion", "CreateMessage", "Tokenize"):
            call = api.channel.unary_stream(f"/quire.{service_of(method)}/{method}")(body)
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await anext(aiter(call))
            held = [
                one for one in gc.get_objects(generation=0) if isinstance(one, HttpBody) and len(one.data) > 500_000
            ]
            assert not held, method
    finally:
        gc.enable()


async def test_a_body_that_is_too_large_is_not_read(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await post(api, "CreateCompletion", {"model": MODEL, "prompt": "a" * (DEFAULT_MAX_BODY_BYTES + 200_000)})
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_text_that_takes_too_much_memory_to_tokenize_is_refused(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_size, "MAX_TEXT_BYTES", 1000)
    api = await start_router(fake_scheduler(max_model_len=2000))
    long = {"role": "user", "content": "é" * 501}
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("Tokenize", {"prompt": "é" * 501}, "prompt"),
        ("Tokenize", {"messages": [long]}, "messages"),
        ("CreateCompletion", {"prompt": ["a", "é" * 501]}, "prompt[1]"),
        ("CreateCompletion", {"prompt": "é" * 501, "truncate_prompt_tokens": 5}, "prompt"),
        ("CreateChatCompletion", {"messages": [long]}, "messages"),
    ]
    for method, body, param in refused:
        status, error = await error_of(api, method, {"model": MODEL} | body)
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert error["error"]["param"] == param
        assert "at most 1000 bytes" in error["error"]["message"]
    assert await post(api, "Tokenize", {"model": MODEL, "prompt": "é" * 500})


async def test_every_large_body_leaves_room_for_the_next(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(max_model_len=2 * LARGE_BODY_BYTES))
    large, messages = "a" * LARGE_BODY_BYTES, [{"role": "user", "content": "a" * LARGE_BODY_BYTES}]
    for _ in range(3):
        await post(api, "Tokenize", {"model": MODEL, "prompt": large})
        await post(api, "CreateCompletion", {"model": MODEL, "prompt": large, "max_tokens": 1})
        await post(api, "CreateChatCompletionBatch", {"model": MODEL, "messages": [messages], "max_tokens": 1})
        await post(api, "CreateInvocation", {"model": MODEL, "prompt": large, "max_tokens": 1})
        await error_of(api, "CreateCompletion", {"model": MODEL, "prompt": large, "n": 0})
    assert api.router.threads.large_bodies.num_bytes == 0


async def test_an_answer_that_is_being_written_keeps_no_large_body_waiting(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await start_router(fake_scheduler())
    held = []
    write = Calls.write

    def seen(self: Calls, context: Any, message: Any) -> Awaitable[None]:
        held.append(api.router.threads.large_bodies.num_bytes)
        return write(self, context, message)

    monkeypatch.setattr(Calls, "write", seen)
    await post(api, "Tokenize", {"model": MODEL, "prompt": "a" * LARGE_BODY_BYTES})
    await post(api, "Detokenize", {"model": MODEL, "tokens": [7] * LARGE_BODY_BYTES})
    assert len(held) > 1
    assert not any(held)


async def test_large_typed_requests_are_counted_before_they_are_parsed(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(max_model_len=2 * LARGE_BODY_BYTES))
    stub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    biases = sampling_pb2.SamplingParams(logit_bias=[sampling_pb2.LogitBias(token_id=1, bias=1)] * MAX_WIRE_FIELDS)
    too_many = inference_pb2.GenerateRequest(
        model=MODEL, text="a", options=inference_pb2.GenerationOptions(sampling=biases)
    )
    call = stub.Generate(too_many)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [reply async for reply in call]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "options.sampling.logit_bias" in str(dict(caught.value.trailing_metadata() or ())["quire-error"])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.channel.unary_unary("/quire.inference.v1.InferenceService/Tokenize")(b"\xff" * LARGE_BODY_BYTES * 2)
    # Large requests are answered as small ones are, and leave room for the next.
    text = "a" * (LARGE_BODY_BYTES + 1)
    for _ in range(5):
        answer = await stub.Tokenize(inference_pb2.TokenizeRequest(model=MODEL, text=text))
        assert len(answer.token_ids) == len(text)
        replies = [reply async for reply in stub.Generate(inference_pb2.GenerateRequest(model=MODEL, text=text))]
        assert replies[-1].HasField("final")
    assert api.router.threads.large_bodies.num_bytes == 0


async def test_json_in_a_text_counts_as_json_in_a_body(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(chat_template=QWEN))
    many = json.dumps([[]] * (MAX_CONTAINERS // 2 + 1))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"a": {many}}}'}}
    messages = [USER, {"role": "assistant", "tool_calls": [call, call]}]
    for method, body, param in (
        ("CreateChatCompletion", {"messages": messages}, "messages"),
        ("Tokenize", {"messages": messages}, "messages"),
    ):
        status, error = await error_of(api, method, {"model": MODEL} | body)
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert error["error"]["param"] == param
        assert "objects and arrays" in error["error"]["message"]
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    user, document = inference_pb2.ChatMessage(role="user", content="Hello"), f'{{"text": {many}}}'
    kwargs, tool = inference_pb2.TemplateOptions, inference_pb2.Tool(name="f", parameters=document)
    for request, param in (
        (inference_pb2.ChatRequest(template=kwargs(documents=[document] * 2)), "template.documents[1]"),
        (
            inference_pb2.ChatRequest(template=kwargs(documents=[document], chat_template_kwargs=document)),
            "template.documents[0]",
        ),
        (inference_pb2.ChatRequest(template=kwargs(documents=[document]), tools=[tool]), "tools[0].parameters"),
    ):
        request.messages.append(user)
        with pytest.raises(grpc.aio.AioRpcError, match="objects and arrays") as caught:
            await stub.Chat(request).read()
        assert f"'{param}'" in str(caught.value.details())
