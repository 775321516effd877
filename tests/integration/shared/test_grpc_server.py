"""How a gRPC server stops: calls in progress end, and none is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import math
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.inference.v1 import inference_pb2, inference_pb2_grpc, model_pb2
from quire.worker.v1 import worker_pb2_grpc
from shared.grpc_server import _IDLE_INTERVALS, _INTERVAL_S, GrpcServer
from tests.fakes.waiting import HANG_S
from tests.integration.gateway import http2

SERVICE = "quire.worker.v1.WorkerService"
# More than gRPC sends before the client allows it to send more.
LONG = inference_pb2.DetokenizeResponse(text="a" * 200_000)
FINISHED = model_pb2.GetTokenizerResponse(chunk=b"all")


class SlowWorker(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self) -> None:
        self.has_call, self.may_answer = asyncio.Event(), asyncio.Event()

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.has_call.set()
        await self.may_answer.wait()
        yield FINISHED

    async def Run(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        raise NotImplementedError
        yield


@contextlib.asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[GrpcServer, SlowWorker, grpc.aio.Channel]]:
    server, worker = GrpcServer([SERVICE]), SlowWorker()
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker)
    address = f"unix:{directory}/worker"
    await server.start([address])
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        yield server, worker, channel
    await server.stop(0)


class LongAnswers(inference_pb2_grpc.InferenceServiceServicer):
    """Its handler has returned before its answer is sent."""

    def __init__(self) -> None:
        self.has_call = asyncio.Event()

    async def Detokenize(self, request: Any, context: Any) -> inference_pb2.DetokenizeResponse:  # noqa: N802
        self.has_call.set()
        return LONG


async def test_an_answer_that_is_still_read_is_completed() -> None:
    server, servicer = GrpcServer([]), LongAnswers()  # type: ignore[abstract]  # it needs one method
    server.add(inference_pb2_grpc.add_InferenceServiceServicer_to_server, servicer)
    (address,) = await server.start(["127.0.0.1:0"])
    message, may_send_more = inference_pb2.DetokenizeRequest().SerializeToString(), asyncio.Event()
    reading = asyncio.create_task(
        http2.request(
            address, b"POST", b"/quire.inference.v1.InferenceService/Detokenize",
            ((b"content-type", b"application/grpc"), (b"te", b"trailers")),
            struct.pack(">BI", 0, len(message)) + message, may_send_more=may_send_more,
        )
    )  # fmt: skip
    await asyncio.wait_for(servicer.has_call.wait(), HANG_S)
    stopping = asyncio.create_task(server.stop(math.inf))
    await asyncio.sleep(1.3 * _IDLE_INTERVALS * _INTERVAL_S)
    assert not reading.done()
    may_send_more.set()
    assert inference_pb2.DetokenizeResponse.FromString((await reading)[5:]) == LONG
    await asyncio.wait_for(stopping, HANG_S)


async def never() -> AsyncIterator[model_pb2.GetTokenizerRequest]:
    await asyncio.Event().wait()
    yield model_pb2.GetTokenizerRequest()


async def test_a_call_that_no_handler_has_seen_ends_soon(tmp_path: Path) -> None:
    """gRPC forgets a call that arrives just when it shuts down. Here the request does not arrive, with the same
    effect."""
    async with served(tmp_path) as (server, worker, channel):
        method = channel.stream_stream(
            f"/{SERVICE}/GetTokenizer",
            request_serializer=model_pb2.GetTokenizerRequest.SerializeToString,
            response_deserializer=model_pb2.GetTokenizerResponse.FromString,
        )
        call = method(never())
        # The server has seen the first call when it has the second.
        other = worker_pb2_grpc.WorkerServiceStub(channel).GetTokenizer(model_pb2.GetTokenizerRequest())
        await asyncio.wait_for(worker.has_call.wait(), HANG_S)
        worker.may_answer.set()
        assert [message async for message in other] == [FINISHED]
        await asyncio.wait_for(server.stop(math.inf), HANG_S)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")


async def test_a_call_in_progress_ends_as_it_would(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, worker, channel):
        call = worker_pb2_grpc.WorkerServiceStub(channel).GetTokenizer(model_pb2.GetTokenizerRequest())
        await asyncio.wait_for(worker.has_call.wait(), HANG_S)
        stopping = asyncio.create_task(server.stop(math.inf))
        await asyncio.sleep(1.3 * _IDLE_INTERVALS * _INTERVAL_S)
        worker.may_answer.set()
        assert [message async for message in call] == [FINISHED]
        await asyncio.wait_for(stopping, HANG_S)
