"""Errors that the gateway makes by itself look to gRPC clients as those of a router do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from quire import AsyncClient, QuireError
from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter

TOKENIZE = "/quire.inference.v1.InferenceService/Tokenize"


@pytest.fixture
async def channel(gateway: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        yield channel


async def error_of(call: Any) -> tuple[grpc.aio.AioRpcError, dict[str, Any], dict[str, str]]:
    """The error, its `quire-error`, which must say the same, and its trailers."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    trailers = {name: str(value) for name, value in caught.value.trailing_metadata() or ()}
    error = json.loads(trailers["quire-error"])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] == caught.value.details()
    return caught.value, error, trailers


def assert_details(raised: grpc.aio.AioRpcError, error: dict[str, Any], retry_seconds: int | None = None) -> None:
    """google.rpc.Status says the same."""
    trailers: dict[str, Any] = dict(raised.trailing_metadata() or ())
    status: Any = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (raised.code().value[0], raised.details())
    details = {detail.TypeName(): detail.value for detail in status.details}
    info = error_details_pb2.ErrorInfo.FromString(details.pop("google.rpc.ErrorInfo"))
    assert (info.reason, info.domain) == (error["code"].upper(), "quire")
    if retry_seconds is not None:
        retry = error_details_pb2.RetryInfo.FromString(details.pop("google.rpc.RetryInfo"))
        assert retry.retry_delay.ToTimedelta().total_seconds() == retry_seconds
    assert not details


async def test_a_path_that_there_is_not(channel: Any) -> None:
    raised, error, _ = await error_of(channel.unary_unary('/no.such/"Method"%')(b""))
    assert raised.code() is grpc.StatusCode.UNIMPLEMENTED
    assert raised.details() == "There is no POST /no.such/%22Method%22% here."
    assert (error["type"], error["code"]) == ("invalid_request_error", "unknown_url")
    assert_details(raised, error)


async def test_a_method_that_a_router_does_not_have(channel: Any) -> None:
    raised, error, _ = await error_of(channel.unary_unary("/quire.inference.v1.InferenceService/None")(b""))
    assert raised.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error["code"] == "unknown_method"
    assert_details(raised, error)


async def test_no_router(channel: Any, router: FakeRouter) -> None:
    await router.stop()
    raised, error, trailers = await error_of(channel.unary_unary(TOKENIZE)(b""))
    assert raised.code() is grpc.StatusCode.UNAVAILABLE
    assert raised.details() == "No router is available; try again."
    assert (error["code"], trailers["retry-after"], trailers["grpc-retry-pushback-ms"]) == ("unavailable", "1", "1000")
    assert_details(raised, error, retry_seconds=1)


async def test_a_router_s_error_stays_as_it_is(channel: Any) -> None:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    raised, error, trailers = await error_of(stub.Tokenize(inference_pb2.TokenizeRequest(model="gone")))
    assert (raised.code(), error["code"]) == (grpc.StatusCode.NOT_FOUND, "model_not_found")
    assert "grpc-retry-pushback-ms" not in trailers


@pytest.mark.parametrize(
    ("verb", "status", "code", "http"),
    [
        ("Received", grpc.StatusCode.RESOURCE_EXHAUSTED, "request_too_large", 413),
        ("Sent", grpc.StatusCode.INTERNAL, "internal_error", 500),
    ],
)
async def test_a_request_that_the_library_refuses_is_told_from_an_answer_that_it_refuses(
    channel: Any, gateway: Gateway, router: FakeRouter, verb: str, status: grpc.StatusCode, code: str, http: int
) -> None:
    """Neither is worth a retry."""
    message = router.inference.refusal = f"SERVER: {verb} message larger than max (5 vs. 4)"
    stream = channel.unary_stream("/quire.inference.v1.InferenceService/Generate")(b"")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    trailers: dict[str, Any] = dict(caught.value.trailing_metadata() or ())
    assert (caught.value.code(), caught.value.details()) == (status, message)
    assert trailers.get("grpc-retry-pushback-ms") == "-1"
    assert json.loads(trailers["quire-error"])["error"]["code"] == code
    reply = await call(gateway.address, "POST", "/quire.inference.v1.InferenceService/Generate", b"{}")
    assert (reply.status, reply.error["code"]) == (http, code if http == 413 else None)
    assert message in reply.error["message"]


async def test_the_limit_of_bodies_holds_for_grpc_and_is_final(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--max-body-bytes", "2000")
    try:
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
            below = inference_pb2.TokenizeRequest(model="m", text="x" * 1900)
            assert (await error_of(stub.Tokenize(below)))[0].code() is grpc.StatusCode.NOT_FOUND
            above = inference_pb2.TokenizeRequest(model="m", text="x" * 2000)
            raised, error, trailers = await error_of(stub.Tokenize(above))
        assert raised.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert raised.details() == "The request body is too large: at most 2000 bytes are allowed."
        assert (error["code"], trailers["grpc-retry-pushback-ms"]) == ("request_too_large", "-1")
        assert_details(raised, error)
        assert (await call(gateway.address, "POST", "/v1/chat/completions", b"x" * 2001)).status == 413
        assert (await call(gateway.address, "POST", "/v1/chat/completions", b"x" * 2000)).status == 200
        # The client's own retries would take longer than this test may.
        async with AsyncClient(gateway.address, max_retries=100) as client:
            with pytest.raises(QuireError, match="too large") as caught:
                await client.tokenize("x" * 2000)
        assert (caught.value.code, caught.value.is_final) == ("request_too_large", True)
    finally:
        await gateway.stop()
