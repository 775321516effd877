"""quire.inference.v1 over real gRPC, with health checking and reflection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from quire.inference.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from services.router.apis.typed import token_strings
from services.router.main import GRPC_SERVICES, HTTP_SERVICES
from services.router.prompt import encoding
from services.router.text.detokenizer import Vocabulary
from tests.integration.router.conftest import (
    GREETING,
    MODEL,
    Api,
    RefusedError,
    StartRouter,
    answer_text,
    error_reply,
    fake_scheduler,
)
from tests.integration.router.fake_scheduler import unpack
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

USER = inference_pb2.ChatMessage(role="user", content="Hello")


def stub_of(api: Api) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(api.channel)


async def collect(call: Any) -> tuple[list[inference_pb2.Delta], inference_pb2.Final]:
    """Deltas and the final message, which must be the last."""
    try:
        responses = [response async for response in call]
    except grpc.aio.AioRpcError as error:
        raise error_reply(error) from None
    assert [response.WhichOneof("event") for response in responses] == ["delta"] * (len(responses) - 1) + ["final"]
    return [response.delta for response in responses[:-1]], responses[-1].final


async def test_generate_streams_text_ids_and_a_final_message(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    request = inference_pb2.GenerateRequest(model=MODEL, text="Once")
    deltas, final = await collect(stub_of(api).Generate(request))
    assert "".join(delta.text for delta in deltas) == GREETING
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert ids == [*byte_level().encode(GREETING).ids, EOS_TOKEN_ID]
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [sampling_pb2.FINISH_REASON_STOP]
    assert final.usage.completion_tokens == len(ids)
    assert final.usage.prompt_tokens == len(byte_level().encode("Once").ids)
    # The fake scheduler says 4.
    assert final.usage.cached_tokens == final.usage.prompt_tokens == 1


async def test_generate_gives_whole_choices_to_who_does_not_read_along(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one, two, three")))
    options = inference_pb2.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(logprobs=1), n=3, stop_strings=[", th"]
    )
    streamed, end = await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(text="Once", options=options)))
    request = inference_pb2.GenerateRequest(text="Once", options=options, whole=True)
    deltas, final = await collect(stub_of(api).Generate(request))

    assert len(streamed) > 3
    assert sorted(delta.choice_index for delta in deltas) == [0, 1, 2]
    for delta in deltas:
        pieces = [piece for piece in streamed if piece.choice_index == delta.choice_index]
        assert delta.text == "one, two"
        assert list(delta.token_ids) == [token_id for piece in pieces for token_id in piece.token_ids]
        assert list(delta.logprobs) == [entry for piece in pieces for entry in piece.logprobs]
        assert delta.finish_reason == sampling_pb2.FINISH_REASON_STOP
    assert final.usage == end.usage
    for times in (final.timings, end.timings):
        assert 0 < times.first_token_seconds <= times.last_token_seconds <= times.total_seconds


@pytest.mark.parametrize(("skip", "text"), [(None, "Hi!"), (True, "Hi!"), (False, "Hi<|im_start|>!")])
async def test_special_tokens_are_left_out_of_the_text_or_not(
    start_router: StartRouter, skip: bool | None, text: str
) -> None:
    api = await start_router(fake_scheduler(answer_text("Hi<|im_start|>!")))
    options = inference_pb2.GenerationOptions(skip_special_tokens=skip)
    deltas, _ = await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(text="Once", options=options)))

    assert "".join(delta.text for delta in deltas) == text


async def test_chat_takes_options(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text("one, two, three"))
    api = await start_router(scheduler)
    options = inference_pb2.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(temperature=0, seed=5, logprobs=1),
        stop=sampling_pb2.StopConditions(max_tokens=50, stop_token_ids=[7]),
        stop_strings=[", th"],
        n=2,
    )
    deltas, _ = await collect(stub_of(api).Chat(inference_pb2.ChatRequest(messages=[USER], options=options)))
    for index in range(2):
        mine = [delta for delta in deltas if delta.choice_index == index]
        assert "".join(delta.text for delta in mine) == "one, two"
        assert sum(len(delta.logprobs) for delta in mine) == sum(len(delta.token_ids) for delta in mine)
    (submit,) = scheduler.submits
    assert (submit.sampling.seed, submit.sampling.temperature, submit.sampling.logprobs) == (5, 0, 1)
    assert (submit.stop.max_tokens, list(submit.stop.stop_token_ids)) == (50, [7])
    assert [choice.choice_index for choice in submit.choices] == [0, 1]


async def test_tokenize_detokenize_and_models(start_router: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    api = await start_router(fake_scheduler())
    stub = stub_of(api)
    tokens = await stub.Tokenize(inference_pb2.TokenizeRequest(text="Grüße"))
    assert list(tokens.token_ids) == byte_level().encode("Grüße").ids
    assert tokens.max_model_len == 256
    text = await stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=tokens.token_ids))
    assert text.text == "Grüße"
    monkeypatch.setattr(encoding, "MAX_DETOKENIZED_BYTES", 6)
    with pytest.raises(grpc.aio.AioRpcError, match="their text has 7 bytes; at most 6") as caught:
        await stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=tokens.token_ids))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    refused = await api.refused("Detokenize", {"tokens": list(tokens.token_ids)})
    assert (refused.status, refused.error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "tokens")
    chat = inference_pb2.ChatMessages(messages=[USER])
    rendered = await stub.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
    assert byte_level().decode(rendered.token_ids, skip_special_tokens=False).startswith("<|im_start|>user\nHello")
    models = await stub.ListModels(inference_pb2.ListModelsRequest())
    assert [model.name for model in models.models] == [MODEL, f"{MODEL}-alias"]


async def test_answers_that_are_too_long_are_refused_with_the_field_s_name(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = token_strings.MAX_TOKEN_STRINGS
    stub = stub_of(await start_router(fake_scheduler(max_model_len=2 * count)))
    made = []
    shown_text = Vocabulary.shown_text

    def seen(self: Vocabulary, token_id: int) -> str:
        made.append(threading.current_thread())
        return shown_text(self, token_id)

    monkeypatch.setattr(Vocabulary, "shown_text", seen)
    chat = inference_pb2.ChatMessages(messages=[inference_pb2.ChatMessage(role="user", content="a" * count)])
    many = [
        (stub.Tokenize, inference_pb2.TokenizeRequest(text="a" * (count + 1), return_token_strs=True), "text"),
        (stub.Tokenize, inference_pb2.TokenizeRequest(chat=chat, return_token_strs=True), "chat"),
        (stub.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[70] * (count + 1), each=True), "token_ids"),
    ]
    for method, request, param in many:
        assert await refused_field(method(request)) == param
    assert made == []
    texts = (await stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[70] * 5000, each=True))).texts
    assert (len(texts), len(set(texts))) == (5000, 1)
    assert threading.main_thread() not in made
    monkeypatch.setattr(token_strings, "MAX_MESSAGE_BYTES", 20_000)
    for method, request, param in (
        (stub.Tokenize, inference_pb2.TokenizeRequest(text="a" * 5000, return_token_strs=True), "text"),
        (stub.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[70] * 8000, each=True), "token_ids"),
        (stub.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[70] * 20_000), "token_ids"),
    ):
        assert await refused_field(method(request)) == param


async def refused_field(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(error_reply(caught.value).error["param"])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "text", "'text' or 'token_ids'"),
        ({"token_ids": {"ids": [10**6]}}, "token_ids.ids[0]", "out of range"),
        ({"text": "x", "options": {"sampling": {"temperature": 9.0}}}, "options.sampling.temperature", "at most 2"),
        ({"text": "x", "options": {"sampling": {"top_p": float("nan")}}}, "options.sampling.top_p", "nan"),
        ({"text": "x", "options": {"stop": {"max_tokens": 0}}}, "options.stop.max_tokens", "at least 1"),
        ({"text": "x", "options": {"stop": {"max_tokens": 999}}}, "options.stop.max_tokens", "too large"),
        ({"text": "x", "options": {"n": 0}}, "options.n", "from 1 to 128"),
        ({"text": "x", "options": {"stop_strings": [""]}}, "options.stop_strings", "must not be empty"),
    ],
)
async def test_bad_fields_are_named(start_router: StartRouter, fields: Any, param: str, words: str) -> None:
    api = await start_router(fake_scheduler())
    with pytest.raises(RefusedError) as caught:
        await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(**fields)))
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.error["param"] == param
    assert words in caught.value.error["message"]


async def test_empty_conversations_and_unknown_models_are_refused(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    with pytest.raises(RefusedError) as caught:
        await collect(stub_of(api).Chat(inference_pb2.ChatRequest()))
    assert caught.value.error["param"] == "messages"
    with pytest.raises(RefusedError) as caught:
        await collect(stub_of(api).Chat(inference_pb2.ChatRequest(model="none", messages=[USER])))
    assert caught.value.status is grpc.StatusCode.NOT_FOUND


async def test_the_typed_api_asks_for_keys_too(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    stub = stub_of(api)
    with pytest.raises(RefusedError) as caught:
        await collect(stub.Generate(inference_pb2.GenerateRequest(text="x")))
    assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
    for method, request in (
        (stub.Tokenize, inference_pb2.TokenizeRequest(text="x")),
        (stub.Detokenize, inference_pb2.DetokenizeRequest()),
        (stub.ListModels, inference_pb2.ListModelsRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(request)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    key = (("authorization", "Bearer secret"),)
    assert (await collect(stub.Generate(inference_pb2.GenerateRequest(text="x"), metadata=key)))[0]


async def test_reflection_lists_the_services(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    address = api.address

    def services() -> set[str]:
        with grpc.insecure_channel(address) as channel:
            return set(ProtoReflectionDescriptorDatabase(channel).get_services())

    names = await asyncio.to_thread(services)
    assert {*HTTP_SERVICES, *GRPC_SERVICES, "grpc.health.v1.Health"} <= names


async def test_prompts_given_as_ids_are_sent_as_they_are(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[9, 8, 7]))))
    assert unpack(scheduler.submits[0].prompt_token_ids) == [9, 8, 7]
