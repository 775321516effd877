"""Answers that outlast a router's drain timeout end with an error as any other, not with a broken stream."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import inference_pb2
from services.router.main import LAST_WORDS_S
from tests.fakes.waiting import until
from tests.integration.router.conftest import MODEL, StartRouter, error_reply, fake_scheduler
from tests.integration.router.test_recovery import pausing, read_rest, read_until
from tests.integration.router.test_status_details import details_of
from tests.integration.router.test_typed_api import stub_of

TEXT = "The server stopped before the answer was complete. Try again."


async def until_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("is_suspended", [False, True], ids=["", "suspended when its drain ends"])
async def test_the_last_words_of_a_router_are_an_error_of_each_api(
    start_router: StartRouter, is_suspended: bool
) -> None:
    never = asyncio.Event()
    api = await start_router(fake_scheduler(pausing(5, never)), drain_timeout=0.5)
    typed: Any = stub_of(api).Generate(inference_pb2.GenerateRequest(model=MODEL, text="Once"))
    await typed.read()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    streamed: Any = api.stub.CreateChatCompletion(HttpBody(data=json.dumps({**body, "stream": True}).encode()))
    await read_until(streamed, 1)
    whole: Any = api.stub.CreateChatCompletion(HttpBody(data=json.dumps(body).encode()))
    await until(lambda: api.router.generator.num_requests == 3)

    stopping = asyncio.create_task(api.router.stop())
    if is_suspended:
        await asyncio.sleep(0.05)  # the drain begins
        time.sleep(0.5 + 2 * LAST_WORDS_S)  # noqa: ASYNC251 - the event loop must stand still
    await stopping

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await until_end(typed)
    refused = error_reply(caught.value)
    assert (refused.status, refused.error["message"]) == (grpc.StatusCode.UNAVAILABLE, TEXT)
    assert details_of(caught.value)["RetryInfo"].retry_delay.ToMilliseconds() > 0
    last = (await read_rest(streamed))[-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == TEXT
    assert await streamed.code() is grpc.StatusCode.OK
    assert (await whole.code(), await whole.details()) == (grpc.StatusCode.UNAVAILABLE, TEXT)
