"""What gRPC clients read of an error: google.rpc.Status with its details, beside `quire-error`."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from quire.inference.v1 import inference_pb2, sampling_pb2
from quire.kserve.v1 import open_inference_pb2, open_inference_pb2_grpc
from services.router.rpc.request_fields import proto_path
from tests.integration.router.conftest import StartRouter, fake_scheduler
from tests.integration.router.test_typed_api import stub_of

USER = inference_pb2.ChatMessage(role="user", content="x")
Options = inference_pb2.GenerationOptions
Sampling = sampling_pb2.SamplingParams
Stop = sampling_pb2.StopConditions
# By the field that the error must name, what sets it badly in GenerationOptions.
BAD_OPTIONS = {
    "options.sampling.temperature": Options(sampling=Sampling(temperature=9)),
    "options.sampling.logit_bias": Options(sampling=Sampling(logit_bias=[sampling_pb2.LogitBias(token_id=10**6)])),
    "options.sampling.logprob_token_ids": Options(sampling=Sampling(logprob_token_ids=[10**6])),
    "options.stop.stop_token_ids": Options(stop=Stop(stop_token_ids=[10**6])),
    "options.stop.min_tokens": Options(stop=Stop(min_tokens=9, max_tokens=8)),
    "options.stop.max_tokens": Options(stop=Stop(max_tokens=10**6)),
    "options.stop_strings": Options(stop_strings=[""]),
    "options.n": Options(n=1000),
    "options.allowed_token_ids": Options(allowed_token_ids=[10**6]),
    "options.bad_words": Options(bad_words=[""]),
    "options.truncation_side": Options(truncation_side=77),  # type: ignore[arg-type]
    # Too many, which is found out before they are converted.
    "options.sampling.logprob_token_ids ": Options(sampling=Sampling(logprob_token_ids=[1] * 21)),
    "options.stop.stop_token_ids ": Options(stop=Stop(stop_token_ids=[1] * 257)),
    "options.bad_words ": Options(bad_words=["a"] * 1025),
    "options.structure.choices.texts": Options(structure={"choices": {"texts": ["a"] * 4097}}),  # type: ignore[arg-type]
    "options.structure.regex": Options(structure={"regex": "("}),  # type: ignore[arg-type]
}


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The details by the name of their message. They must say what the status and `quire-error` say."""
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = {}
    for detail in status.details:
        name = detail.TypeName().rpartition(".")[2]
        message = found[name] = getattr(error_details_pb2, name)()
        assert detail.Unpack(message)
    if "BadRequest" in found:
        (violation,) = found["BadRequest"].field_violations
        told = json.loads(trailers["quire-error"])["error"]
        assert (violation.field, violation.description) == (told["param"], told["message"])
    return found


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """The error that the call must end with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return caught.value


@pytest.mark.parametrize("field", BAD_OPTIONS)
async def test_a_bad_option_is_named_by_the_path_in_the_proto(start_router: StartRouter, field: str) -> None:
    stub = stub_of(await start_router(fake_scheduler()))
    for call in (
        stub.Generate(inference_pb2.GenerateRequest(text="x", options=BAD_OPTIONS[field])),
        stub.Chat(inference_pb2.ChatRequest(messages=[USER], options=BAD_OPTIONS[field])),
    ):
        error = await refused(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        (violation,) = details_of(error)["BadRequest"].field_violations
        assert violation.field == field.strip()
        assert f"'{field.strip()}" in violation.description


async def test_every_field_that_an_error_names_is_one_of_the_request(start_router: StartRouter) -> None:
    stub = stub_of(await start_router(fake_scheduler()))
    long = "one, two, three " * 100
    chats = inference_pb2.ChatMessages
    for method, request in (
        ("Generate", inference_pb2.GenerateRequest()),
        ("Generate", inference_pb2.GenerateRequest(text=long)),
        ("Generate", inference_pb2.GenerateRequest(token_ids={"ids": [1, 10**6]})),  # type: ignore[arg-type]
        ("Chat", inference_pb2.ChatRequest()),
        ("Chat", inference_pb2.ChatRequest(messages=[inference_pb2.ChatMessage()])),
        ("Chat", inference_pb2.ChatRequest(messages=[USER], template={"chat_template": "{{"})),  # type: ignore[arg-type]
        ("Tokenize", inference_pb2.TokenizeRequest()),
        ("Tokenize", inference_pb2.TokenizeRequest(chat=chats(messages=[inference_pb2.ChatMessage()]))),
        ("Tokenize", inference_pb2.TokenizeRequest(chat=chats(messages=[USER], template={"chat_template": "{{"}))),  # type: ignore[arg-type]
        ("Detokenize", inference_pb2.DetokenizeRequest(token_ids=[10**6])),
        ("Embed", inference_pb2.EmbedRequest()),
        ("Score", inference_pb2.ScoreRequest()),
    ):
        error = await refused(getattr(stub, method)(request))
        (violation,) = details_of(error)["BadRequest"].field_violations
        assert proto_path(request.DESCRIPTOR, violation.field) == violation.field, violation


async def test_an_unknown_enum_value_is_refused_after_the_key(start_router: StartRouter) -> None:
    stub = stub_of(await start_router(fake_scheduler(), api_key=("secret",)))
    request = inference_pb2.GenerateRequest(text="x", options=BAD_OPTIONS["options.truncation_side"])
    error = await refused(stub.Generate(request))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert details_of(error)["ErrorInfo"].reason == "INVALID_API_KEY"
    error = await refused(stub.Generate(request, metadata=[("authorization", "Bearer secret")]))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_error_that_passes_says_when_to_try_again(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler, max_num_requests=1, scheduler_wait=0.0)
    await scheduler.stop()
    error = await refused(stub_of(api).Generate(inference_pb2.GenerateRequest(text="x")))
    while error.code() is not grpc.StatusCode.UNAVAILABLE:
        error = await refused(stub_of(api).Generate(inference_pb2.GenerateRequest(text="x")))
    delay = details_of(error)["RetryInfo"].retry_delay.ToMilliseconds()
    trailers = dict(error.trailing_metadata() or ())
    assert delay >= 1
    assert trailers["grpc-retry-pushback-ms"] == str(delay)
    assert "BadRequest" not in details_of(error)


async def test_kserve_s_errors_name_its_own_field(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(api.channel)
    error = await refused(stub.ModelReady(open_inference_pb2.ModelReadyRequest(name="none")))
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    assert json.loads(trailers["quire-error"])["error"]["param"] == "name"
    assert details_of(error)["ErrorInfo"].reason == "MODEL_NOT_FOUND"


async def test_undecodable_bytes_are_told_in_plain_words_with_trailers(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    call: Any = api.channel.unary_unary("/quire.inference.v1.InferenceService/Tokenize")
    error = await refused(call(b"\xff\xff\xff"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == (
        "The request's 3 bytes are not a message of this method: check that client and server use the same protos."
    )
    assert details_of(error)["ErrorInfo"].reason == "UNDECODABLE_MESSAGE"
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    assert json.loads(trailers["quire-error"])["error"]["message"] == error.details()
