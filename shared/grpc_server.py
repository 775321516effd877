"""What every service's gRPC server has: bounded messages, a guard against malformed ones, health and reflection.

The health and reflection services come from grpcio's own packages and are left out, with a line in the log, where
those are not installed (a bare GPU machine).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from shared.malformed import PLAIN, GuardedServer, RefusalStyle

logger = logging.getLogger(__name__)

# Of a message on any hop: the most that a gRPC client takes that sets no limit. What is longer is sent in pieces
# (shared/message_parts.py, services/router/http/json.py).
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Metadata of one request. As in HTTP/2, each name and value count with 32 bytes more than they have. By default gRPC
# refuses some requests between 8 and 16 KiB, at random. The gateway passes on at most 96 KiB in 100 headers, and adds a
# few headers of its own.
MAX_METADATA_BYTES = 128 * 1024
# A peer that takes nothing off its stream for so long is given up.
STALLED_PEER_S = 2.0

# Both ends: pings keep idle streams through proxies and find a peer that vanished without closing.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that restarts is dialled again at once, and then at most this far apart.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Whatever its name says, this is how long an attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 10_000),
]

# Servers accept any number of pings. By default gRPC closes a connection, with all answers on it, after the third ping
# in a row that comes less than five minutes after the last while the server sends nothing. A long answer that is not
# streamed looks like that (docs/adr/0018-silent-connections.md).
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *CHANNEL_OPTIONS,
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """False for the traceback that grpc logs when it reads a header that is not UTF-8. It takes the header for Latin-1,
    which clients may send."""
    return not str(record.msg).startswith("Invalid encoding on")


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_worth_a_line)


class GrpcServer:
    """A grpc.aio server on some addresses (`host:port` or `unix:/path`), with health and reflection."""

    def __init__(
        self,
        services: Iterable[str],
        refusal_style: RefusalStyle = PLAIN,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """`services`: full names of those to be added through `add`; each gets a health status.
        `max_request_bytes`: of one message that a client sends; gRPC refuses a larger one with RESOURCE_EXHAUSTED,
        without reading it."""
        self._services = list(services)
        options = dict(SERVER_OPTIONS) | {"grpc.max_receive_message_length": max_request_bytes}
        self.server = grpc.aio.server(options=list(options.items()))
        self._guarded = GuardedServer(self.server, refusal_style)
        self._health: Any = None

    def add(self, register: Callable[[Any, Any], None], servicer: Any) -> None:
        """`register` is the generated add_…_to_server."""
        register(servicer, self._guarded)
        # Reflection shows this file. The module of `register` loads only the messages that its methods name, and those
        # may all be of other files.
        importlib.import_module(register.__module__.removesuffix("_grpc"))

    async def start(self, addresses: Iterable[str]) -> list[str]:
        """Starts serving; health is NOT_SERVING until `set_serving`. Returns the addresses, port 0 replaced by the
        port got. Raises OSError with a sentence when an address cannot be bound.
        """
        await self._add_health_and_reflection()
        bound = []
        for address in addresses:
            try:
                port = self.server.add_insecure_port(address)
            except RuntimeError as error:
                raise OSError(f"cannot listen on {address}: is another program using it?") from error
            bound.append(address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}")
        await self.server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        if self._health is None:
            return
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ["", *self._services]:
            await self._health.set(service, status)

    async def stop(self, grace: float) -> None:
        """Refuses new calls at once and cancels those still running after `grace` seconds."""
        await self.set_serving(False)
        await asyncio.shield(self.server.stop(grace))

    async def _add_health_and_reflection(self) -> None:
        try:
            from grpc_health.v1 import health, health_pb2_grpc

            from shared.reflection import add_reflection
        except ImportError:
            logger.info("grpcio-health-checking or grpcio-reflection is not installed: serving without them")
            return
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._guarded)
        await self.set_serving(False)
        add_reflection([*self._services, health.SERVICE_NAME], self._guarded)
