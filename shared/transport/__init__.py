"""Calls between the services: what a client and a server need of them, and their implementation with gRPC."""

from shared.transport.channel import Channel, Connect, Method
from shared.transport.grpc_channel import GrpcChannel
from shared.transport.grpc_server_stream import GrpcServerStream
from shared.transport.stream import ClientStream, ServerStream, StreamEndedError

__all__ = [
    "Channel",
    "ClientStream",
    "Connect",
    "GrpcChannel",
    "GrpcServerStream",
    "Method",
    "ServerStream",
    "StreamEndedError",
]
