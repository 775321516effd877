"""Several models behind one router: what each API lists, and what a request for none of them gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from quire.kserve.v1 import kserve_pb2, kserve_pb2_grpc, open_inference_pb2, open_inference_pb2_grpc
from quire.ollama.v1 import ollama_pb2, ollama_pb2_grpc
from quire.openai.v1 import openai_pb2
from services.router.apis.anthropic import ANTHROPIC_VERSION_HEADER
from tests.fakes.waiting import until
from tests.integration.router.conftest import Api, StartRouter, ready_scheduler, until_ready
from tests.integration.router.fake_scheduler import FakeScheduler
from tests.integration.router.test_other_apis import CHAT, MESSAGE, RESPONSE, USER, error_of, post

Listing = Callable[[Api], Awaitable[list[str]]]


async def openai_models(api: Api) -> list[str]:
    return [card["id"] for card in (await api.get("ListModels")).json["data"]]


async def anthropic_models(api: Api) -> list[str]:
    request = openai_pb2.ListModelsRequest()
    reply = await api.stub.ListModels(request, metadata=((ANTHROPIC_VERSION_HEADER, "2023-06-01"),))
    return [card["id"] for card in json.loads(reply.data)["data"]]


async def ollama_models(api: Api) -> list[str]:
    stub: Any = ollama_pb2_grpc.OllamaServiceStub(api.channel)
    reply = await stub.ListModels(ollama_pb2.ListModelsRequest())
    return [card["model"].removesuffix(":latest") for card in json.loads(reply.data)["models"]]


async def typed_models(api: Api) -> list[str]:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(api.channel)
    return [model.name for model in (await stub.ListModels(inference_pb2.ListModelsRequest())).models]


LISTINGS: tuple[Listing, ...] = (openai_models, anthropic_models, ollama_models, typed_models)


async def lists(api: Api) -> list[list[str]]:
    return [await listing(api) for listing in LISTINGS]


async def two_models(start_router: StartRouter, **options: Any) -> tuple[FakeScheduler, FakeScheduler, Api]:
    """Starts a router with the models "a" and "b", and waits until it knows both."""
    a, b = ready_scheduler("a"), ready_scheduler("b")
    api = await start_router(a, b, **options)
    await until(lambda: sorted(api.router.placement.models.names) == ["a", "b"])
    return a, b, api


async def test_every_api_lists_the_models_that_are_served_now(start_router: StartRouter) -> None:
    a, b, api = await two_models(start_router)
    assert await lists(api) == [["a", "a-alias", "b", "b-alias"]] * len(LISTINGS)
    await a.stop()
    await until(lambda: api.router.placement.models.names == ["b"])
    assert await lists(api) == [["b", "b-alias"]] * len(LISTINGS)
    b.load.is_draining = True
    await a.start(a.address)
    await until(lambda: api.router.placement.models.names == ["a"])
    assert await lists(api) == [["a", "a-alias"]] * len(LISTINGS)


async def test_each_request_goes_to_a_scheduler_of_its_model(start_router: StartRouter) -> None:
    a, b, api = await two_models(start_router)
    assert (await api.chat(model="b-alias")).json["model"] == "b"
    assert (await api.complete(model="a")).json["model"] == "a"
    assert (len(a.submits), len(b.submits)) == (1, 1)


async def test_requests_in_flight_wait_for_the_scheduler_of_a_model_that_is_not_listed(
    start_router: StartRouter,
) -> None:
    a, b, api = await two_models(start_router)
    address = a.address
    await a.stop()
    await until(lambda: api.router.placement.models.names == ["b"])
    stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(api.channel)
    await until_ready(api, "b")
    readiness = [
        (await stub.ModelReady(open_inference_pb2.ModelReadyRequest(name=name))).ready for name in ("a", "b-alias")
    ]
    assert readiness == [False, True]
    assert (await api.get("GetHealth")).json == {"status": "ok"}, "a model is served"
    waiting = asyncio.create_task(api.chat(model="a"))
    await until(lambda: api.router.placement.num_parked == 1)
    await a.start(address)
    assert (await waiting).json["model"] == "a"
    assert not b.submits


async def test_an_unknown_model_s_error_names_those_that_are_served(start_router: StartRouter) -> None:
    _, _, api = await two_models(start_router)
    message = "The model `none` does not exist. Served here: `a` and `b`."
    unknown = {"model": "none"}
    for method, body in (("CreateChatCompletion", {"messages": [USER]}), ("CreateCompletion", {"prompt": "x"}),
                         ("CreateEmbedding", {"input": "x"}), ("CreateRerank", {"query": "x", "documents": ["y"]}),
                         ("Tokenize", {"prompt": "x"}), ("CreateResponse", RESPONSE)):  # fmt: skip
        status, error = await error_of(api, method, {**body, **unknown})
        assert (status, error["error"]["message"]) == (grpc.StatusCode.NOT_FOUND, message), method
        assert error["error"]["code"] == "model_not_found"
    assert (await error_of(api, "CreateMessage", MESSAGE | unknown))[1]["error"]["message"] == message
    assert (await error_of(api, "Chat", CHAT | unknown))[1]["error"] == message
    kserve: Any = kserve_pb2_grpc.KserveServiceStub(api.channel)
    typed: Any = inference_pb2_grpc.InferenceServiceStub(api.channel)
    for call, request in (
        (kserve.GetModelMetadata, kserve_pb2.GetModelMetadataRequest(model="none")),
        (typed.Tokenize, inference_pb2.TokenizeRequest(model="none", text="x")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, message)


async def test_a_request_without_a_model_gets_the_default_one(start_router: StartRouter) -> None:
    _, _, api = await two_models(start_router)
    status, error = await error_of(api, "CreateChatCompletion", {"messages": [USER]})
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert error["error"]["message"] == "Missing required parameter: 'model'. Served here: `a` and `b`."
    _, _, api = await two_models(start_router, default_model="b")
    reply = await api.post("CreateChatCompletion", {"messages": [USER]})
    assert reply.json["model"] == "b"
    typed: Any = inference_pb2_grpc.InferenceServiceStub(api.channel)
    assert (await typed.Tokenize(inference_pb2.TokenizeRequest(text="x"))).token_ids


async def two_versions(start_router: StartRouter, *weights: int) -> tuple[FakeScheduler, FakeScheduler, Api]:
    """Starts a router with versions "v1" and "v2" of the model "a"."""
    schedulers = []
    for version, weight in zip(("v1", "v2"), weights, strict=True):
        scheduler = ready_scheduler("a")
        scheduler.model.version, scheduler.model_weight = version, weight
        schedulers.append(scheduler)
    api = await start_router(*schedulers)
    await until(lambda: api.router.placement.models.versions("a") == ["v1", "v2"])
    return schedulers[0], schedulers[1], api


async def test_chats_and_completions_are_shared_between_versions_and_stay(start_router: StartRouter) -> None:
    v1, v2, api = await two_versions(start_router, 100, 100)
    typed: Any = inference_pb2_grpc.InferenceServiceStub(api.channel)

    async def typed_chat(text: str) -> None:
        message = inference_pb2.ChatMessage(role="user", content=text)
        request = inference_pb2.ChatRequest(model="a", messages=[message])
        assert [reply async for reply in typed.Chat(request)]

    ways: tuple[Callable[[str], Awaitable[Any]], ...] = (
        lambda text: api.chat(model="a", messages=[{"role": "user", "content": text}], max_tokens=2),
        lambda text: api.complete(model="a", prompt=text, max_tokens=2),
        lambda text: api.complete(model="a", prompt="x", prompt_cache_key=text, max_tokens=2),
        typed_chat,
    )
    for ask in ways:
        first: list[int] = []
        for number in range(16):
            before = len(v1.submits)
            await ask(f"Question {number}")
            first.append(len(v1.submits) - before)
        assert 0 < sum(first) < 16, "each version gets some"
        for number in range(16):
            before = len(v1.submits)
            await ask(f"Question {number}")
            assert len(v1.submits) - before == first[number]
    assert v2.submits


async def test_every_api_reaches_a_version_by_its_name(start_router: StartRouter) -> None:
    v1, v2, api = await two_versions(start_router, 100, 0)
    assert await lists(api) == [["a", "a-alias", "a@v1", "a@v2"]] * len(LISTINGS)
    for name, scheduler in (("a", v1), ("a@v1", v1), ("a@v2", v2), ("a-alias@v2", v2)):
        v1.submits.clear()
        v2.submits.clear()
        assert (await api.chat(model=name)).json["model"] == "a"
        await api.complete(model=name)
        await post(api, "CreateMessage", MESSAGE | {"model": name})
        await post(api, "Chat", CHAT | {"model": f"{name}:latest"})
        await post(api, "CreateResponse", RESPONSE | {"model": name})
        assert len(scheduler.submits) == 5, name
        assert len(v1.submits) + len(v2.submits) == 5
    kserve: Any = kserve_pb2_grpc.KserveServiceStub(api.channel)
    metadata = await kserve.GetModelMetadata(kserve_pb2.GetModelMetadataRequest(model="a/versions/v2"))
    described = json.loads(metadata.data)
    assert (described["name"], described["versions"]) == ("a", ["v1", "v2"])
    ready = await kserve.GetModelReady(kserve_pb2.GetModelReadyRequest(model="a/versions/v2"))
    assert json.loads(ready.data) == {"name": "a", "ready": True}
    for model, answering in (("a", "v1"), ("a/versions/v2", "v2")):
        body = HttpBody(data=b'{"text_input": "a", "max_tokens": 1}')
        pieces = [piece.data async for piece in kserve.Generate(kserve_pb2.GenerateRequest(model=model, body=body))]
        assert json.loads(b"".join(pieces))["model_version"] == answering
    open_inference: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(api.channel)
    await until_ready(api, "a@v2")
    described = await open_inference.ModelMetadata(open_inference_pb2.ModelMetadataRequest(name="a-alias"))
    assert list(described.versions) == ["v1", "v2"]
