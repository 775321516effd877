"""What docs/grpc.md tells clients to set works against the gateway as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import FakeRouter
from tests.integration.gateway.test_grpc_errors import assert_details

DOCUMENT = (Path(__file__).parents[3] / "docs" / "grpc.md").read_text()
(SERVICE_CONFIG,) = re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
REQUEST = inference_pb2.GenerateRequest(model="fake", text="abc")


async def pieces(call: grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]) -> str:
    return "".join([response.delta.text async for response in call])


async def test_the_service_config_retries_what_has_brought_nothing(gateway: Gateway, router: FakeRouter) -> None:
    options = [("grpc.service_config", SERVICE_CONFIG)]
    async with grpc.aio.insecure_channel(gateway.address, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        router.inference.num_failures = 3
        assert await pieces(stub.Generate(REQUEST)) == "abc"
        router.inference.num_failures = 4
        with pytest.raises(grpc.aio.AioRpcError, match="not yet"):
            await pieces(stub.Generate(REQUEST))
        # One that has brought a message is not.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pieces(stub.Generate(inference_pb2.GenerateRequest(model="fake", text="break")))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_deadline_ids_and_traces_reach_the_router(gateway: Gateway, router: FakeRouter) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(REQUEST, timeout=HANG_S, metadata=(("x-request-id", "mine"), ("traceparent", trace)))
        assert await pieces(call) == "abc"
        told = dict(await call.initial_metadata())
    assert told["x-request-id"] == "mine"
    assert router.inference.metadata["x-request-id"] == "mine"
    assert router.inference.metadata["traceparent"] == trace
    assert router.inference.seconds_left is not None
    # gRPC sends a timeout rounded up to at most three digits, so a second can be added.
    assert 0 < router.inference.seconds_left <= HANG_S + 1


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_request_may_be_compressed(gateway: Gateway, compression: grpc.Compression) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(model="fake", text="abc" * 1000)
        assert await pieces(stub.Generate(request, compression=compression)) == "abc" * 1000


async def test_a_request_that_is_too_large_once_it_is_decompressed_is_refused_for_good(gateway: Gateway) -> None:
    """The router's gRPC library refuses it, as if the router were too busy."""
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(model="fake", text="a" * 40_000_000)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pieces(stub.Generate(request, compression=grpc.Compression.Gzip))
    trailers: dict[str, Any] = dict(caught.value.trailing_metadata() or ())
    error = json.loads(trailers["quire-error"])["error"]
    assert (caught.value.code(), error["code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "request_too_large")
    assert trailers["grpc-retry-pushback-ms"] == "-1"
    assert_details(caught.value, error)


async def services_of(channel: grpc.aio.Channel) -> list[str]:
    """What reflection lists."""
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(listing)
    await call.done_writing()
    return [service.name for service in (await call.read()).list_services_response.service]


async def test_health_has_the_names_of_the_services(gateway: Gateway) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        listed = await services_of(channel)
        assert {"quire.openai.v1.OpenAIService", "grpc.reflection.v1.ServerReflection"} <= set(listed)
        for name in ("", *listed):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="quire.none.v1.NoService"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
