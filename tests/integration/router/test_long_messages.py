"""Router, scheduler and worker, where every message between them is long and comes in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from shared import grpc_server, message_parts
from tests.fakes.fake_worker import start_fake_worker
from tests.fakes.stack import running_router, running_scheduler, talking_worker


@asynccontextmanager
async def running_worker(address: str) -> AsyncIterator[None]:
    server = await start_fake_worker(talking_worker(), address)
    try:
        yield
    finally:
        await server.stop(0)


@pytest.mark.parametrize("part_bytes", [8, 2**20])
async def test_messages_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    joined: list[str] = []
    add = message_parts.PartJoiner.add

    def counted(self: message_parts.PartJoiner[object], message: object) -> object:
        whole = add(self, message)
        if whole is not None and whole is not message:
            joined.append(type(whole).__name__)
        return whole

    monkeypatch.setattr(message_parts.PartJoiner, "add", counted)
    async with (
        running_worker(f"unix:{tmp_path}/w"),
        running_scheduler(f"unix:{tmp_path}/s", f"unix:{tmp_path}/w"),
        running_router(f"unix:{tmp_path}/r", f"unix:{tmp_path}/s"),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/r") as channel,
    ):
        # The hellos are through.
        monkeypatch.setattr(message_parts, "PART_BYTES", part_bytes)
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=range(40, 80)))
        request.options.stop.max_tokens = 8
        request.options.stop.ignore_eos = True
        token_ids = [token_id async for response in stub.Generate(request) for token_id in response.delta.token_ids]
        assert len(token_ids) == 8
        expected = {"ConnectRequest", "ConnectResponse", "RunRequest", "RunResponse"} if part_bytes == 8 else set()
        assert set(joined) == expected


async def test_an_answer_that_no_client_takes_is_the_request_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.router.rpc.guard.MAX_MESSAGE_BYTES", 100)
    assert grpc_server.MAX_MESSAGE_BYTES == 4 * 2**20
    async with (
        running_worker(f"unix:{tmp_path}/w"),
        running_scheduler(f"unix:{tmp_path}/s", f"unix:{tmp_path}/w"),
        running_router(f"unix:{tmp_path}/r", f"unix:{tmp_path}/s"),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/r") as channel,
    ):
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert len((await stub.Tokenize(inference_pb2.TokenizeRequest(text="short"))).token_ids) == 4
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="long" * 100))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Ask for less" in (caught.value.details() or "")
