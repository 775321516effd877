"""Answers requests that a method cannot parse, and logs them with at most one line per host in LOG_INTERVAL_S.

By default, grpc.aio answers bytes that it cannot parse with UNKNOWN and logs a traceback each time. `GuardedServer`
stands between the generated add_…_to_server functions and the server, and wraps every method handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

logger = logging.getLogger(__name__)

# Minimum time between two log lines about one host, so that a port scanner cannot fill the disk.
LOG_INTERVAL_S = 10.0
# Maximum number of hosts with log lines of their own. All further hosts share one entry, "other hosts".
MAX_HOSTS = 256
_OTHERS = "other hosts"
_MAX_REASON_CHARS = 256

_CONSTRUCTORS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class MalformedRequestError(Exception):
    """A request that the method does not accept. The error's text gives the reason and is sent to the peer.

    A servicer can raise this error to end the call with INVALID_ARGUMENT.
    """


class UndecodableRequestError(MalformedRequestError):
    """A request whose bytes do not parse as the method's request message."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(
            f"The request's {num_bytes} bytes are not a message of this method: check that client and server use the "
            "same protos."
        )


@dataclass(frozen=True, slots=True)
class RefusalStyle:
    """How a server answers requests that it cannot parse."""

    # Status for bytes that do not parse as the method's request message.
    undecodable: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    # Builds the trailing metadata of a refusal. None: no trailing metadata.
    trailers: Callable[[MalformedRequestError], tuple[tuple[str, str | bytes], ...]] | None = None


PLAIN = RefusalStyle()


@dataclass(slots=True)
class _Line:
    """The last log line about one host: its time, and the number of the host's requests that were refused after it
    and not logged."""

    logged_at: float
    num_silent: int = 0


class RefusalLog:
    """Logs refused requests, with at most one line per host in LOG_INTERVAL_S. A line also says how many of the host's
    requests were refused and not logged since the previous line about the host."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    def refused(self, peer: str, method: str, reason: str) -> None:
        """Logs or counts a refused request. `peer`: the client as grpc names it, such as ipv4:10.0.0.1:41234."""
        now = self._clock()
        host = peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
        if host not in self._lines and len(self._lines) >= MAX_HOSTS:
            self._forget(now)
            if len(self._lines) >= MAX_HOSTS:
                host = _OTHERS
        line = self._lines.get(host)
        if line is not None and now - line.logged_at < LOG_INTERVAL_S:
            line.num_silent += 1
            return
        self._lines[host] = _Line(now)
        omitted = f" ({line.num_silent} more since the last such line)" if line is not None and line.num_silent else ""
        logger.warning("refused a request from %s to %s: %s%s", host, method, reason[:_MAX_REASON_CHARS], omitted)

    def _forget(self, now: float) -> None:
        """Removes the entries of hosts whose last line is older than LOG_INTERVAL_S. Such a host needs no entry,
        because its next refused request is logged in either case."""
        self._lines = {host: line for host, line in self._lines.items() if now - line.logged_at < LOG_INTERVAL_S}


@dataclass(frozen=True, slots=True)
class _Refusals:
    log: RefusalLog
    style: RefusalStyle

    async def refuse(self, error: MalformedRequestError, peer: str, method: str, context: Any) -> None:
        """Aborts the call and logs the refusal. Never returns: `context.abort` raises."""
        self.log.refused(peer, method, str(error))
        is_undecodable = isinstance(error, UndecodableRequestError)
        status = self.style.undecodable if is_undecodable else grpc.StatusCode.INVALID_ARGUMENT
        trailers = () if self.style.trailers is None else self.style.trailers(error)
        await context.abort(status, str(error), trailing_metadata=trailers)


class _Running:
    """Counts calls from the start of their handlers until their last message has been sent."""

    def __init__(self) -> None:
        self.number = 0

    def count_this_call(self) -> None:
        # grpc runs the handler in the call's task, which also sends a single answer, after the handler has returned.
        task = asyncio.current_task()
        assert task is not None
        self.number += 1
        task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.number -= 1


class GuardedServer:
    """Registers method handlers at a grpc.aio server. Wraps each handler so that malformed requests are answered in the
    given style and logged, and so that the calls in progress are counted."""

    def __init__(self, server: grpc.aio.Server, style: RefusalStyle = PLAIN) -> None:
        self._server = server
        self._refusals = _Refusals(RefusalLog(), style)
        self._running = _Running()

    @property
    def num_running(self) -> int:
        """Number of calls whose handlers have started and whose last message has not been sent."""
        return self._running.number

    def uncounted(self) -> GuardedServer:
        """Returns a copy whose calls are not in `num_running`, with the same log."""
        other = copy.copy(self)
        other._running = _Running()
        return other

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        guarded = (_GuardedHandlers(handler, self._refusals, self._running) for handler in handlers)
        self._server.add_generic_rpc_handlers(tuple(guarded))

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        guarded = {
            name: _guarded(handler, f"/{service}/{name}", self._refusals, self._running)
            for name, handler in handlers.items()
        }
        self._server.add_registered_method_handlers(service, guarded)


class _GuardedHandlers(grpc.GenericRpcHandler):
    def __init__(self, handlers: grpc.GenericRpcHandler, refusals: _Refusals, running: _Running) -> None:
        self._handlers = handlers
        self._refusals = refusals
        self._running = running
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = str(details.method)
        if method not in self._guarded:
            handler = self._handlers.service(details)
            if handler is None:
                return None
            self._guarded[method] = _guarded(handler, method, self._refusals, self._running)
        return self._guarded[method]


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Placeholder for a request that cannot be parsed, until the wrapped handler refuses it."""

    error: MalformedRequestError


def _guarded(
    handler: grpc.RpcMethodHandler[Any, Any], method: str, refusals: _Refusals, running: _Running
) -> grpc.RpcMethodHandler[Any, Any]:
    deserialize = handler.request_deserializer
    is_streamed = bool(handler.request_streaming)

    def parse(data: bytes) -> Any:
        try:
            return data if deserialize is None else deserialize(data)
        except Exception:  # every exception of the parser means that the bytes are malformed
            error = UndecodableRequestError(len(data))
        # The wrapped handler reads a stream's messages itself, so it can catch the error. But grpc parses a single
        # request before the handler runs, so a placeholder carries the error to the handler.
        if is_streamed:
            raise error
        return _Malformed(error)

    async def refuse(error: MalformedRequestError, peer: str, context: Any) -> None:
        await refusals.refuse(error, peer, method, context)

    construct: Any = _CONSTRUCTORS[is_streamed, bool(handler.response_streaming)]
    behaviour = _guarded_behaviour(_behaviour(handler), refuse, running)
    parsing: grpc.RpcMethodHandler[Any, Any] = construct(
        behaviour, request_deserializer=parse, response_serializer=handler.response_serializer
    )
    return parsing


def _behaviour(handler: Any) -> Callable[[Any, Any], Any]:
    behaviours = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    behaviour: Callable[[Any, Any], Any] = next(behaviour for behaviour in behaviours if behaviour is not None)
    return behaviour


def _guarded_behaviour(
    behaviour: Callable[[Any, Any], Any],
    refuse: Callable[[MalformedRequestError, str, Any], Any],
    running: _Running,
) -> Callable[[Any, Any], Any]:
    """Wraps `behaviour` so that `refuse` is called for malformed requests, and so that `running` counts the call.
    Returns an async generator function if `behaviour` is one, otherwise a coroutine function, because grpc treats the
    two differently."""

    async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
        running.count_this_call()
        peer = context.peer()  # read it now, because grpc forgets the peer when the call ends
        try:
            if isinstance(request, _Malformed):
                raise request.error
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except MalformedRequestError as error:
            await refuse(error, peer, context)
        except grpc.aio.AbortError as abort:
            # Break a reference cycle that would keep the request in memory until the next garbage collection: grpc's
            # call state holds this error, and the error's traceback holds the frames, which hold the call state.
            del request
            raise abort.with_traceback(None) from None

    async def call(request: Any, context: Any) -> Any:
        running.count_this_call()
        peer = context.peer()
        try:
            if isinstance(request, _Malformed):
                raise request.error
            return await behaviour(request, context)
        except MalformedRequestError as error:
            await refuse(error, peer, context)
        except grpc.aio.AbortError as abort:
            del request
            raise abort.with_traceback(None) from None

    return generate if inspect.isasyncgenfunction(behaviour) else call
