"""Reads the single request of a call without keeping a reference to it.

grpc keeps the request of a unary call until the call ends, both as bytes and as a message: twice its size during the
whole generation. On the wire, a unary call is a stream with one request. So `SingleRequestServer`, which stands between
the generated add_…_to_server functions and the server, registers each method as a streaming method that reads one
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc


class SingleRequestServer:
    """Stands in for a grpc.aio server when generated code registers handlers. Registers handlers of unary requests at
    the server as streaming handlers."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing, because generated code passes the same handlers also to `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        reading = {name: _reading(handler) for name, handler in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, reading)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_registered_method_handlers(service, reading)


def _reading(handler: Any) -> Any:
    behaviour = handler.unary_stream or handler.unary_unary

    async def answer(_: object, context: Any) -> Any:
        # The request is kept in a list, so that pop() removes this frame's reference to it.
        read = [await context.read()]
        if read[0] is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INTERNAL, "The call ended before its request arrived.")
        return await behaviour(read.pop(), context)

    construct: Any = (
        grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    )
    return construct(
        answer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )
