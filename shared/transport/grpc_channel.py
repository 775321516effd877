"""Channels and clients' streams over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import grpc

from shared.grpc_server import CHANNEL_OPTIONS
from shared.transport.channel import Method
from shared.transport.stream import ClientStream, StreamEndedError

RequestT = TypeVar("RequestT", bound=Any)
ResponseT = TypeVar("ResponseT", bound=Any)

# Details of the status INTERNAL that grpcio gives a call when a write fails because the connection broke. No server
# sent this status.
_FAILED_WRITE = "Internal error from Core"


class GrpcChannel:
    def __init__(self, address: str) -> None:
        """`address`: host:port or unix:/path."""
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    def open(
        self, method: Method[RequestT, ResponseT], *, wait_for_ready: bool = False
    ) -> ClientStream[RequestT, ResponseT]:
        start = self._channel.stream_stream(method.path, method.request.SerializeToString, method.response.FromString)
        return _GrpcStream(start(wait_for_ready=wait_for_ready))

    async def replies(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> AsyncIterator[ResponseT]:
        start = self._channel.unary_stream(method.path, method.request.SerializeToString, method.response.FromString)
        try:
            async for response in start(request, timeout=timeout_s):
                yield response
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise StreamEndedError(grpc.StatusCode.CANCELLED, "the channel was closed") from None

    async def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        start = self._channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
        try:
            response: ResponseT = await start(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise StreamEndedError(grpc.StatusCode.CANCELLED, "the channel was closed") from None
        return response

    async def close(self) -> None:
        await self._channel.close()


class _GrpcStream(Generic[RequestT, ResponseT]):
    def __init__(self, call: grpc.aio.StreamStreamCall[RequestT, ResponseT]) -> None:
        self._call = call

    async def write(self, message: RequestT, /) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except asyncio.InvalidStateError:  # the call ended before this write
            raise await self._status() from None
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise await self._status() from None

    async def read(self) -> ResponseT:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise await self._status() from None
        if message is grpc.aio.EOF:
            raise await self._status()
        return message  # type: ignore[return-value]

    def cancel(self) -> None:
        self._call.cancel()

    async def _status(self) -> StreamEndedError:
        return _with_status(await self._call.code(), await self._call.details() or "")


def _is_task_cancelled() -> bool:
    """Returns whether the running task was cancelled. After a call's `cancel`, gRPC raises CancelledError in the task
    that reads or writes, although no one cancelled that task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ended(error: grpc.aio.AioRpcError) -> StreamEndedError:
    return _with_status(error.code(), error.details() or "")


def _with_status(code: grpc.StatusCode, details: str) -> StreamEndedError:
    if code is grpc.StatusCode.INTERNAL and details == _FAILED_WRITE:
        return StreamEndedError(grpc.StatusCode.UNAVAILABLE, "the connection broke during a write")
    return StreamEndedError(code, details)
