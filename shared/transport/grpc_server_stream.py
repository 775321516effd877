"""Servers' streams over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, NoReturn, TypeVar

import grpc

RequestT = TypeVar("RequestT", bound=Any)
ResponseT = TypeVar("ResponseT", bound=Any)


class GrpcServerStream(Generic[RequestT, ResponseT]):
    """Wraps what gRPC passes to the method of a servicer."""

    def __init__(self, requests: AsyncIterator[RequestT], context: Any) -> None:
        self._requests = requests
        self._context = context

    async def read(self) -> RequestT | None:
        # gRPC complains about an iterator that is made but never awaited, so the first read makes it.
        return await anext(aiter(self._requests), None)

    async def write(self, message: ResponseT, /) -> None:
        await self._context.write(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        await self._context.abort(code, details)
        raise AssertionError("gRPC's abort raises")
