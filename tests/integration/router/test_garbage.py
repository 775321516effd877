"""Garbage on the router's port costs one line in the log and disturbs nobody."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import inference_pb2
from quire.kserve.v1 import open_inference_pb2
from quire.openai.v1 import openai_pb2
from tests.fakes.garbage import check_log, log_once, throw_at
from tests.integration.router.conftest import GREETING, MODEL, StartRouter, fake_scheduler
from tests.integration.router.test_recovery import pausing, read_rest, read_until, text_in

# One method of each kind that parses a message of its own, HTTP bodies included.
METHODS = [
    f"/{service.full_name}/{name}"
    for service, names in (
        (openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"], ("CreateChatCompletion", "ListModels")),
        (inference_pb2.DESCRIPTOR.services_by_name["InferenceService"], ("Generate", "Tokenize")),
        (open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"], ("ModelReady",)),
    )
    for name in names
] + ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]


@pytest.fixture(autouse=True)
def _log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log_once(monkeypatch)


async def test_garbage_is_refused_beside_a_stream_that_goes_on(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    resume = asyncio.Event()
    api = await start_router(fake_scheduler(pausing(5, resume)))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    call = api.stub.CreateChatCompletion(HttpBody(data=json.dumps(body).encode()))
    messages = await read_until(call, 1)
    await throw_at(api.address, METHODS, grpc.StatusCode.INTERNAL)
    resume.set()
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert await call.code() is grpc.StatusCode.OK
    check_log(caplog, capfd)
