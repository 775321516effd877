"""gRPC clients use the same port as HTTP clients, and meet the routers as if nothing stood between."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from quire.worker.v1 import worker_pb2_grpc
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import FakeRouter, error_json
from tests.integration.router.test_reflection import VERSIONS, ReflectionClient


async def test_typed_calls_pass(gateway: Gateway) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        reply = await stub.ListModels(inference_pb2.ListModelsRequest())

    assert [(model.name, model.max_model_len) for model in reply.models] == [("fake", 512)]


async def test_the_trailers_of_an_error_pass_unchanged(gateway: Gateway, router: FakeRouter) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_pb2_grpc.InferenceServiceStub(channel).Tokenize(inference_pb2.TokenizeRequest(model="gone"))

    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no model gone")
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["quire-error"] == error_json("no model gone", "invalid_request_error", "model", "model_not_found")


async def test_health_and_reflection_are_the_routers(gateway: Gateway) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        check = health_pb2.HealthCheckRequest(service="quire.inference.v1.InferenceService")
        health = await health_pb2_grpc.HealthStub(channel).Check(check)
        services = [await ReflectionClient(channel, version).services() for version in VERSIONS]

    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert all("quire.inference.v1.InferenceService" in known for known in services)


async def test_an_unknown_service_is_unimplemented(gateway: Gateway) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker_pb2_grpc.WorkerServiceStub(channel).Run(iter(())).read()

    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
