"""Streams over real gRPC keep the promises that the services rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.router.dispatch import scheduler_connection
from services.scheduler.worker_groups import worker_link
from shared.grpc_server import GrpcServer
from shared.transport import GrpcChannel, GrpcServerStream, Method, ServerStream, StreamEndedError

Stream = ServerStream[worker_pb2.RunRequest, worker_pb2.RunResponse]
Serve = Callable[[Stream], Awaitable[None]]


class _Servicer(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    async def Run(  # type: ignore[override] # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RunRequest], context: Any
    ) -> None:
        await self._serve(GrpcServerStream(request_iterator, context))

    def GetTokenizer(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


@asynccontextmanager
async def served(tmp_path: Path, serve: Serve) -> AsyncIterator[tuple[GrpcChannel, GrpcServer]]:
    server = GrpcServer(["quire.worker.v1.WorkerService"])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, _Servicer(serve))
    address = f"unix:{tmp_path}/worker"
    await server.start([address])
    channel = GrpcChannel(address)
    try:
        yield channel, server
    finally:
        await channel.close()
        await server.stop(0)


def claim(name: str) -> worker_pb2.RunRequest:
    return worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id=name))


def hello(epoch: int) -> worker_pb2.RunResponse:
    return worker_pb2.RunResponse(hello=worker_pb2.Hello(epoch=epoch))


async def wait_forever(stream: Stream) -> None:
    await stream.write(hello(0))
    await asyncio.Event().wait()


async def test_messages_arrive_in_order_and_then_the_status(tmp_path: Path) -> None:
    async def serve(stream: Stream) -> None:
        for epoch in range(50):
            received = await stream.read()
            assert received is not None
            assert received.claim.scheduler_id == str(epoch)
            await stream.write(hello(epoch))

    async with served(tmp_path, serve) as (channel, _):
        stream = channel.open(worker_link.RUN)
        for epoch in range(50):
            await stream.write(claim(str(epoch)))
        assert [(await stream.read()).hello.epoch for _ in range(50)] == list(range(50))
        with pytest.raises(StreamEndedError) as ended:
            await stream.read()
        assert ended.value.code is grpc.StatusCode.OK


async def test_an_error_of_the_server_comes_after_its_messages(tmp_path: Path) -> None:
    async def serve(stream: Stream) -> None:
        await stream.write(hello(1))
        await stream.abort(grpc.StatusCode.FAILED_PRECONDITION, "held by another")

    async with served(tmp_path, serve) as (channel, _):
        stream = channel.open(worker_link.RUN)
        assert (await stream.read()).hello.epoch == 1
        for call in (stream.read(), stream.read(), stream.write(claim("late"))):
            with pytest.raises(StreamEndedError, match="held by another") as ended:
                await call
            assert ended.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_cancel_ends_a_read_that_waits_but_not_its_task(tmp_path: Path) -> None:
    async with served(tmp_path, wait_forever) as (channel, _):
        stream = channel.open(worker_link.RUN)
        await stream.read()
        read = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.cancel()
        for call in (read, stream.read(), stream.write(claim("late"))):
            with pytest.raises(StreamEndedError) as ended:
                await call
            assert ended.value.code is grpc.StatusCode.CANCELLED


async def test_a_task_that_is_cancelled_while_it_reads_ends_as_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path, wait_forever) as (channel, _):
        stream = channel.open(worker_link.RUN)
        await stream.read()
        read = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read


async def test_cancel_cancels_the_task_of_the_server(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def serve(stream: Stream) -> None:
        try:
            await wait_forever(stream)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with served(tmp_path, serve) as (channel, _):
        stream = channel.open(worker_link.RUN)
        await stream.read()
        stream.cancel()
        await cancelled.wait()


async def test_the_end_of_the_server_ends_the_stream(tmp_path: Path) -> None:
    async with served(tmp_path, wait_forever) as (channel, server):
        stream = channel.open(worker_link.RUN)
        await stream.read()
        await server.stop(0)
        with pytest.raises(StreamEndedError):
            await stream.read()


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    channel = GrpcChannel(f"unix:{tmp_path}/nobody")
    stream = channel.open(worker_link.RUN)
    with pytest.raises(StreamEndedError) as ended:
        await stream.read()
    assert ended.value.code is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(StreamEndedError):
        await channel.call(scheduler_connection.RESET_PREFIX_CACHE, scheduler_pb2.ResetPrefixCacheRequest(), 10.0)
    await channel.close()


@pytest.mark.parametrize(
    ("service", "methods"),
    [
        (worker_pb2.DESCRIPTOR.services_by_name["WorkerService"], [worker_link.RUN, worker_link.GET_TOKENIZER]),
        (
            scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"],
            [scheduler_connection.CONNECT, scheduler_connection.GET_TOKENIZER, scheduler_connection.RESET_PREFIX_CACHE],
        ),
    ],
)
def test_every_method_is_one_of_the_protos(service: Any, methods: list[Method[Any, Any]]) -> None:
    for method in methods:
        declared = service.methods_by_name[method.path.rpartition("/")[2]]
        assert method.path == f"/{service.full_name}/{declared.name}"
        assert (declared.input_type, declared.output_type) == (method.request.DESCRIPTOR, method.response.DESCRIPTOR)
