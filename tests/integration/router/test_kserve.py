"""KServe's Open Inference Protocol, by gRPC and as Envoy makes HTTP of it: alive, ready, and which models."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.kserve.v1 import kserve_pb2, kserve_pb2_grpc, open_inference_pb2, open_inference_pb2_grpc
from tests.integration.router.conftest import (
    MODEL,
    Api,
    RefusedError,
    StartRouter,
    fake_scheduler,
    ready_scheduler,
    until_ready,
)


def typed(api: Api) -> Any:
    return open_inference_pb2_grpc.GRPCInferenceServiceStub(api.channel)


def over_http(api: Api) -> Any:
    return kserve_pb2_grpc.KserveServiceStub(api.channel)


def content(reply: HttpBody) -> Any:
    return json.loads(reply.data)


async def status_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


def test_names_and_numbers_are_the_protocols() -> None:
    """Wire-compatible: KServe's clients bring stubs of their own, made from KServe's proto."""
    file = open_inference_pb2.DESCRIPTOR
    (service,) = file.services_by_name.values()
    assert service.full_name == "inference.GRPCInferenceService"
    numbers = {
        name: {field.name: field.number for field in message.fields}
        for name, message in file.message_types_by_name.items()
        if message.fields
    }
    assert numbers == {
        "ServerLiveResponse": {"live": 1},
        "ServerReadyResponse": {"ready": 1},
        "ModelReadyRequest": {"name": 1, "version": 2},
        "ModelReadyResponse": {"ready": 1},
        "ServerMetadataResponse": {"name": 1, "version": 2, "extensions": 3},
        "ModelMetadataRequest": {"name": 1, "version": 2},
        "ModelMetadataResponse": {"name": 1, "versions": 2, "platform": 3, "inputs": 4, "outputs": 5},
        "InferParameter": {
            "bool_param": 1,
            "int64_param": 2,
            "string_param": 3,
            "double_param": 4,
            "uint64_param": 5,
        },
        "InferTensorContents": {
            "bool_contents": 1,
            "int_contents": 2,
            "int64_contents": 3,
            "uint_contents": 4,
            "uint64_contents": 5,
            "fp32_contents": 6,
            "fp64_contents": 7,
            "bytes_contents": 8,
        },
        "ModelInferRequest": {
            "model_name": 1,
            "model_version": 2,
            "id": 3,
            "parameters": 4,
            "inputs": 5,
            "outputs": 6,
            "raw_input_contents": 7,
        },
        "ModelInferResponse": {
            "model_name": 1,
            "model_version": 2,
            "id": 3,
            "parameters": 4,
            "outputs": 5,
            "raw_output_contents": 6,
        },
    }


async def test_a_server_with_a_scheduler_is_ready(start_router: StartRouter) -> None:
    api = await start_router(ready_scheduler())
    await until_ready(api, MODEL)
    assert (await typed(api).ServerLive(open_inference_pb2.ServerLiveRequest())).live
    assert (await typed(api).ServerReady(open_inference_pb2.ServerReadyRequest())).ready
    for name in (MODEL, f"{MODEL}-alias"):
        assert (await typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name=name))).ready
        ready = await over_http(api).GetModelReady(kserve_pb2.GetModelReadyRequest(model=name))
        assert content(ready) == {"name": name, "ready": True}
    assert content(await over_http(api).GetLive(kserve_pb2.GetLiveRequest())) == {"live": True}
    assert content(await over_http(api).GetReady(kserve_pb2.GetReadyRequest())) == {"ready": True}


async def test_metadata_names_server_and_model(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    server = await typed(api).ServerMetadata(open_inference_pb2.ServerMetadataRequest())
    assert (server.name, bool(server.version)) == ("quire", True)
    model = await typed(api).ModelMetadata(open_inference_pb2.ModelMetadataRequest(name=MODEL))
    assert (model.name, model.platform) == (MODEL, "quire")
    typed_inputs = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in model.inputs]
    assert typed_inputs[0] == ("text_input", "BYTES", [1])
    assert ("max_tokens", "INT32", [1]) in typed_inputs
    assert [(tensor.name, tensor.datatype) for tensor in model.outputs] == [("text_output", "BYTES")]
    described = await over_http(api).GetModelMetadata(kserve_pb2.GetModelMetadataRequest(model=MODEL))
    metadata = content(described)
    inputs = [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in metadata.pop("inputs")]
    assert inputs == typed_inputs
    outputs = [{"name": "text_output", "datatype": "BYTES", "shape": [1]}]
    assert metadata == {"name": MODEL, "versions": [], "platform": "quire", "outputs": outputs}


async def test_a_model_of_one_unnamed_version_has_no_other_version(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    for call in (
        typed(api).ModelMetadata(open_inference_pb2.ModelMetadataRequest(name=MODEL, version="1")),
        over_http(api).GetModelMetadata(kserve_pb2.GetModelMetadataRequest(model=f"{MODEL}/versions/1")),
        over_http(api).GetModelReady(kserve_pb2.GetModelReadyRequest(model=f"{MODEL}/versions/1")),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=f"The model `{MODEL}@1` does not exist") as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_without_a_scheduler_the_server_lives_and_is_not_ready(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """A probe may come every second, so its answer is neither logged nor counted as an error."""
    scheduler = ready_scheduler()
    api = await start_router(scheduler)
    await scheduler.stop()
    while (await typed(api).ServerReady(open_inference_pb2.ServerReadyRequest())).ready:
        pass
    assert (await typed(api).ServerLive(open_inference_pb2.ServerLiveRequest())).live
    assert not (await typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name=MODEL))).ready
    for call in (
        over_http(api).GetReady(kserve_pb2.GetReadyRequest()),
        over_http(api).GetModelReady(kserve_pb2.GetModelReadyRequest(model=MODEL)),
    ):
        assert await status_of(call) is grpc.StatusCode.UNAVAILABLE
    for method in ("GetHealth", "GetPing"):
        with pytest.raises(RefusedError, match="No scheduler is ready"):
            await api.get(method)
    assert "answered" not in caplog.text
    assert api.router.metrics.errors.total() == 0


async def test_a_probe_does_not_wait_for_the_first_scheduler(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    await scheduler.start()
    await scheduler.stop()
    api = await start_router(scheduler, wait=False, scheduler_wait=1000.0)
    assert not (await typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name="any"))).ready
    assert not (await typed(api).ServerReady(open_inference_pb2.ServerReadyRequest())).ready


async def test_of_two_models_one_may_be_ready(start_router: StartRouter) -> None:
    gone, here = ready_scheduler(name="gone"), ready_scheduler(name="here")
    api = await start_router(gone, here)
    # One is enough for the router to start, and the other is not known yet.
    while not all(connection.is_ready for connection in api.router.placement.connections):
        await typed(api).ServerLive(open_inference_pb2.ServerLiveRequest())
    await until_ready(api, "gone", "here")
    await gone.stop()
    while (await typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name="gone"))).ready:
        pass
    assert (await typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name="here"))).ready


async def test_a_model_without_workers_is_not_ready_until_one_is_back(start_router: StartRouter) -> None:
    scheduler = ready_scheduler()
    api = await start_router(scheduler)
    await until_ready(api, MODEL)
    scheduler.load.num_ready_groups = 0
    while (await typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name=MODEL))).ready:
        pass
    call = over_http(api).GetModelReady(kserve_pb2.GetModelReadyRequest(model=MODEL))
    assert await status_of(call) is grpc.StatusCode.UNAVAILABLE
    server = await typed(api).ServerReady(open_inference_pb2.ServerReadyRequest())
    assert server.ready, "requests still wait for a worker"
    scheduler.load.num_ready_groups = 1
    await until_ready(api, MODEL)


async def test_unknown_models_and_versions_are_refused(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    ready, metadata = open_inference_pb2.ModelReadyRequest, open_inference_pb2.ModelMetadataRequest
    assert await status_of(typed(api).ModelReady(ready(name="none"))) is grpc.StatusCode.NOT_FOUND
    assert await status_of(typed(api).ModelMetadata(metadata(name=""))) is grpc.StatusCode.NOT_FOUND
    refused = await status_of(typed(api).ModelMetadata(metadata(name=MODEL, version="2")))
    assert refused is grpc.StatusCode.NOT_FOUND


async def test_probes_need_no_key_and_what_names_models_does(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    assert (await typed(api).ServerReady(open_inference_pb2.ServerReadyRequest())).ready
    assert content(await over_http(api).GetLive(kserve_pb2.GetLiveRequest())) == {"live": True}
    for call in (
        typed(api).ModelReady(open_inference_pb2.ModelReadyRequest(name=MODEL)),
        typed(api).ModelMetadata(open_inference_pb2.ModelMetadataRequest(name=MODEL)),
        over_http(api).GetModelReady(kserve_pb2.GetModelReadyRequest(model=MODEL)),
        over_http(api).GetModelMetadata(kserve_pb2.GetModelMetadataRequest(model=MODEL)),
    ):
        assert await status_of(call) is grpc.StatusCode.UNAUTHENTICATED


async def test_grpc_health_knows_the_service(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    check = health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService")
    health = await health_pb2_grpc.HealthStub(api.channel).Check(check)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
