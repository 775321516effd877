"""A client that does not read gives its place to others, and misses nothing when it reads again."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.openai.v1 import openai_pb2_grpc
from services.router.dispatch import submission
from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.submission import Mailbox
from tests.fakes.waiting import until
from tests.integration.router.conftest import Reply, StartRouter, answer_text, fake_scheduler

# gRPC takes so much of an unread stream off the network.
NARROW = [("grpc.http2.lookahead_bytes", 16_384), ("grpc.http2.bdp_probe", 0)]
TEXT = " ".join(str(number) for number in range(1200))


@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_does_not_read_gives_its_place_up(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(submission, "MAX_UNREAD_BYTES", 64 * 100)
    scheduler = fake_scheduler(answer_text(TEXT), max_model_len=65_536)
    api = await start_router(scheduler)
    body = b'{"model":"test-model","prompt":"Hello","stream":true,"max_tokens":60000,"n":%d,"logprobs":1}' % n
    async with grpc.aio.insecure_channel(api.address, options=NARROW) as channel:
        stub: openai_pb2_grpc.OpenAIServiceAsyncStub = openai_pb2_grpc.OpenAIServiceStub(channel)
        call: Any = stub.CreateCompletion(HttpBody(content_type="application/json", data=body))
        stream = aiter(call)
        first = await anext(stream)
        await until(lambda: api.router.placement.num_pauses >= n)
        await until(lambda: scheduler.num_running == 0)
        num_submits = len(scheduler.submits)
        messages = [first.data, *[message.data async for message in stream]]
    events = Reply("text/event-stream", messages).events
    texts = ["" for _ in range(n)]
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [TEXT] * n
    assert len(scheduler.submits) > num_submits
    resumed = scheduler.submits[-1].choices[0]
    assert resumed.was_accepted
    assert resumed.output_token_ids


async def test_a_mailbox_is_behind_by_bytes_or_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox(Deliveries())
    sequence: Any = type("Sequence", (), {"has_news": False})()
    mailbox.put(sequence, 1)
    await mailbox.take()
    # A task that is busy for a short time with few tokens waiting is not behind.
    monkeypatch.setattr(submission, "IDLE_CLIENT_SECONDS", 3600.0)
    mailbox.put(sequence, 65)
    assert not mailbox.is_behind
    monkeypatch.setattr(submission, "IDLE_CLIENT_SECONDS", -1.0)
    assert mailbox.is_behind
    monkeypatch.setattr(submission, "IDLE_CLIENT_SECONDS", 3600.0)
    mailbox.put(sequence, 1, num_candidates=2**17)
    assert mailbox.is_behind
    await mailbox.take()
    assert not mailbox.is_behind
