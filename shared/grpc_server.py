"""The gRPC server that every service uses. It limits messages, reports malformed requests, and adds the standard
health and reflection services.

Health and reflection need the packages grpcio-health-checking and grpcio-reflection. Without them, as on a bare GPU
machine, the server logs one line and starts without the two services.
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

# Maximum size of a message between services: gRPC's default limit for clients. Longer messages on a stream are split by
# shared/message_parts.py, and the JSON of long HTTP answers by services/router/http/json.py.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Maximum size of one request's metadata. As in HTTP/2, each header counts 32 bytes more than its name and value. With
# gRPC's default limits, some requests with 8 to 16 KiB of metadata are refused at random. The gateway forwards at most
# 96 KiB in 100 headers and adds a few of its own.
MAX_METADATA_BYTES = 128 * 1024
# If a peer reads nothing from its stream for this long, the stream is ended.
STALLED_PEER_S = 2.0
# Schedulers and workers keep this much of the id that a peer gives itself, for logs and for other peers.
MAX_ID_CHARS = 256
# While a server stops, it checks every _INTERVAL_S seconds whether any handler runs. After this many checks in a row
# without one, it cancels the remaining calls. The 2 s leave time for requests that are still arriving.
_IDLE_INTERVALS = 20
_INTERVAL_S = 0.1

# gRPC's library starts a call anew if its peer, which closes the connection, has not seen the call. If the peer says
# goodbye as soon as the connection is there, as one does that is just stopping, the library starts the call anew
# without a pause until the connection is closed. That keeps a core busy and takes half a gigabyte of memory a second.
# So Quire's programs decide themselves what to do with a call that failed (docs/adr/0018-silent-connections.md).
NO_RETRIES: tuple[str, Any] = ("grpc.enable_retries", 0)

# Options of clients and servers. Pings keep idle streams alive through proxies and detect a peer that vanished
# without closing its connection.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect to a restarted peer after 100 ms, then with a backoff of at most 1 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, this is the timeout of one connection attempt.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    NO_RETRIES,
]

# Options of servers. They accept any number of pings. By default, gRPC closes a connection and all calls on it after
# three pings that arrive less than five minutes apart while the server sends nothing. Such pings arrive while a client
# waits for a long answer that is not streamed (docs/adr/0018-silent-connections.md).
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *CHANNEL_OPTIONS,
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Returns False for the traceback that grpc logs for a header that is not UTF-8. Such a header is no error: clients
    are allowed to send Latin-1, and grpc then decodes the header as Latin-1."""
    return not str(record.msg).startswith("Invalid encoding on")


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_worth_a_line)


# Names that every part's health service knows besides its services, for the probes of an orchestrator such as
# Kubernetes. If LIVENESS is not serving, the process hangs and should be restarted. READINESS is serving while the part
# takes part in the work, or stands by for it.
LIVENESS = "liveness"
READINESS = "readiness"


class GrpcServer:
    """A grpc.aio server that listens on one or more addresses (`host:port` or `unix:/path`), with health and
    reflection."""

    def __init__(
        self,
        services: Iterable[str],
        refusal_style: RefusalStyle = PLAIN,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """`services`: full names of the services that the caller registers through `add`; each gets a health status.
        `max_request_bytes`: limit on one message from a client. gRPC refuses a larger message with RESOURCE_EXHAUSTED,
        and does not read it."""
        self._services = list(services)
        # Those of health and reflection, which `_add_health_and_reflection` adds.
        self._own_services: tuple[str, ...] = ()
        options = dict(SERVER_OPTIONS) | {"grpc.max_receive_message_length": max_request_bytes}
        self.server = grpc.aio.server(options=list(options.items()))
        self._guarded = GuardedServer(self.server, refusal_style)
        # For services whose calls a stop does not wait for, because they need not end by themselves.
        self._uncounted = self._guarded.uncounted()
        self._health: Any = None

    def add(self, register: Callable[[Any, Any], None], servicer: Any) -> None:
        """Registers a servicer. `register`: the generated add_…_to_server function."""
        register(servicer, self._guarded)
        # Loads the proto file that declares the service, because reflection needs its descriptor. The module of
        # `register` does not always load this file: it loads only the files that declare the messages of the methods.
        importlib.import_module(register.__module__.removesuffix("_grpc"))

    async def start(self, addresses: Iterable[str]) -> list[str]:
        """Starts serving. Health is NOT_SERVING until `set_serving(True)`. Returns the addresses, with port 0 replaced
        by the port that the system chose. Raises OSError if an address cannot be bound.
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

    async def set_serving(self, serving: bool, *, stands_by: bool = False) -> None:
        """Sets the status of all services, and READINESS: the part serves or stands by."""
        await self._set_health(serving, "", *self._services, *self._own_services)
        await self._set_health(serving or stands_by, READINESS)

    async def set_live(self, live: bool) -> None:
        """Sets the status of LIVENESS: whether the process makes progress. It does when the server starts."""
        await self._set_health(live, LIVENESS)

    async def _set_health(self, serving: bool, *services: str) -> None:
        if self._health is None:
            return
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in services:
            await self._health.set(service, status)

    async def stop(self, grace: float) -> None:
        """Refuses new calls at once. Cancels calls that still run after `grace` seconds. A second call can shorten the
        time."""
        await self.set_serving(False)
        await asyncio.shield(self._stop(grace))

    async def _stop(self, grace: float) -> None:
        """Stops the server. Soon after all handlers have ended, it cancels the remaining calls.

        A call that arrives at the moment when gRPC begins to shut down can be forgotten there: it is neither refused
        nor given to a handler, and would end only with the grace. A call whose request is still arriving looks the
        same.
        """
        stopping = asyncio.create_task(self.server.stop(grace))
        num_idle = 0
        while not stopping.done():
            await asyncio.wait([stopping], timeout=_INTERVAL_S)
            num_idle = 0 if self._guarded.num_running else num_idle + 1
            if num_idle == _IDLE_INTERVALS:
                await self.server.stop(0)
        await stopping

    async def _add_health_and_reflection(self) -> None:
        try:
            from grpc_health.v1 import health, health_pb2_grpc

            from shared.reflection import NAMES, add_reflection
        except ImportError:
            logger.info("grpcio-health-checking or grpcio-reflection is missing: serving without health and reflection")
            return
        self._health = health.aio.HealthServicer()
        self._own_services = (health.SERVICE_NAME, *NAMES)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._uncounted)
        await self.set_serving(False)
        await self.set_live(True)
        add_reflection([*self._services, health.SERVICE_NAME], self._uncounted)
