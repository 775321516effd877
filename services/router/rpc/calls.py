"""What every RPC of the router does around its work: who asks, what went wrong, and which trace it belongs to."""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from services.router.errors import ApiError, ErrorBody, ErrorKind, internal, invalid
from services.router.limits import ClientStalledError, StallWatch, leave_large_bodies
from services.router.metrics import RequestMetrics
from services.router.rpc.request_fields import check_enums, in_proto_terms
from services.router.rpc.status_details import details_metadata
from shared.grpc_server import MAX_MESSAGE_BYTES
from shared.malformed import MalformedRequestError

logger = logging.getLogger(__name__)

# A client that takes nothing of its answer for so long is given up; its generation ends, and the tokens go to others.
CLIENT_STALL_SECONDS = 60.0
_MAX_ID_CHARS = 128
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Calls:
    """The callers' keys, and a tally of the errors they got."""

    def __init__(self, api_keys: Iterable[str], metrics: RequestMetrics) -> None:
        """`api_keys`: none means that everyone may call. Errors have OpenAI's shape."""
        self._keys = [key.encode() for key in api_keys]
        self._metrics = metrics
        self._error_body: ErrorBody | None = None
        self._is_typed = False
        self._stalls = StallWatch(CLIENT_STALL_SECONDS)
        self._long_answer_turn = asyncio.Lock()

    def with_errors(self, error_body: ErrorBody) -> Calls:
        """For calls whose errors have another shape. All else is shared: long answers of all APIs take turns."""
        calls = copy(self)
        calls._error_body = error_body
        return calls

    def typed(self) -> Calls:
        """For gRPC clients, who call with messages of their own: errors name fields by the proto's paths and bring
        details. All else is shared."""
        calls = copy(self)
        calls._is_typed = True
        return calls

    def authenticate(self, context: Any) -> None:
        """Raises ApiError unless the call carries one of the keys, as a bearer token or as Anthropic's clients do."""
        if not self._keys:
            return
        scheme, _, token = metadata_of(context, "authorization").partition(" ")
        if not token and (key := metadata_of(context, "x-api-key")):
            scheme, token = "bearer", key
        given = token.strip().encode()
        # Every key is compared, in constant time, so that timing tells nothing.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            what = "Incorrect API key provided." if token else "You didn't provide an API key."
            message = f"{what} Send it in a header: Authorization: Bearer YOUR_KEY."
            raise ApiError(ErrorKind.UNAUTHENTICATED, message)

    async def abort(self, context: Any, error: ApiError, descriptor: Any) -> None:
        """Ends the call with this error; never returns. `descriptor`: of the request's type."""
        self.count(error)
        details: tuple[tuple[str, str | bytes], ...] = ()
        if self._is_typed:
            error = in_proto_terms(error, descriptor)
            details = details_metadata(error)
        metadata = (*error.metadata(self._error_body), *details)
        await context.abort(error.kind.status, error.details(), trailing_metadata=metadata)

    def write(self, context: Any, message: Any) -> Awaitable[None]:
        """Sends one message of the answer. Raises ClientStalledError where the client does not take it in time."""
        return self._stalls.over(context.write(message))

    async def write_each(self, context: Any, messages: Iterator[Any]) -> None:
        """Sends a long answer. Each message is made when the client has taken the one before. Only one message of all
        long answers is made in a turn of the event loop, so that the time they take does not add up."""
        while True:
            async with self._long_answer_turn:
                message = next(messages, None)
                await asyncio.sleep(0)
            if message is None:
                return
            await self.write(context, message)

    def count(self, error: ApiError) -> None:
        self._metrics.errors[error.kind.status.name.lower()] += 1


class UnreadRequest(Protocol):
    """Takes the place of a request that must not be parsed before it is known who asks."""

    @property
    def DESCRIPTOR(self) -> Any:  # noqa: N802  # as messages have it
        """The request's type."""

    async def read(self) -> Any:
        """The request. Raises ApiError, and UndecodableRequestError."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rest of a call, from the moment when its request is no longer needed: most often, when it has become tokens.

    A servicer's method returns it, and `rpc` runs it after the method's frame, and the request with it, is gone. So
    neither a long answer nor a client that reads slowly keeps a large body in memory.
    """

    answer: Callable[[], Awaitable[Any]]


class _HasCalls(Protocol):
    @property
    def calls(self) -> Calls: ...


_Method = Callable[[Any, Any, Any], Awaitable[Any]]


def rpc(method: _Method) -> _Method:
    """A servicer's method `(self, request, context)`: errors it raises become the call's status. It runs, and its
    request is read, only for callers with a key, so that strangers take nobody's turn and learn nothing."""
    return _rpc(method, needs_key=True)


def open_rpc(method: _Method) -> _Method:
    """As `rpc`, for everyone."""
    return _rpc(method, needs_key=False)


def _rpc(method: _Method, *, needs_key: bool) -> _Method:
    @functools.wraps(method)
    async def call(self: _HasCalls, request: Any, context: Any) -> Any:
        descriptor = request.DESCRIPTOR
        try:
            is_read = isinstance(request, Message)
            # What is read later takes a turn among the large ones: strangers have none.
            if needs_key or not is_read:
                self.calls.authenticate(context)
            if not is_read:
                request = await request.read()
            check_enums(request)
            answering = method(self, request, context)
            # Now only the method's own frame refers to the request.
            del request
            answer = await answering
            if isinstance(answer, Prepared):
                leave_large_bodies()
                answer = await answer.answer()
            # grpc would end the call with RESOURCE_EXHAUSTED, which tells the client to try again.
            if isinstance(answer, Message) and (size := answer.ByteSize()) > MAX_MESSAGE_BYTES:
                raise invalid(f"The answer has {size} bytes; one may have {MAX_MESSAGE_BYTES}. Ask for less at once.")
            return answer
        except ApiError as raised:
            # Without what it was raised in: this frame would keep that, the request's body too, until a collection.
            error = raised.with_traceback(None)
            error.__context__ = None
        except ClientStalledError:
            logger.warning("%s: the client read nothing for %g s: gave it up", method.__name__, CLIENT_STALL_SECONDS)
            # The status waits behind what the client has not read. So grpc sends it on its own: context.abort would
            # keep this task, and all that the call holds, until then.
            context.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)
            context.set_details("The client read its answer too slowly.")
            return None
        except MalformedRequestError:
            raise
        except Exception as fault:
            if context.done():
                raise
            logger.error("%s failed", method.__name__, exc_info=fault)
            error = internal()
        finally:
            leave_large_bodies()
        await self.calls.abort(context, error, descriptor)
        raise AssertionError("abort returned")

    return call


def metadata_of(context: Any, name: str) -> str:
    """The first value of a metadata key (an HTTP header, through Envoy), or an empty string."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a call's metadata (an HTTP request's headers, through Envoy) says of whoever makes it."""

    # The caller's x-request-id, or a new one.
    request_id: str
    # The gateway's or the caller's x-tenant-id, or empty.
    tenant: str
    # Seconds until the caller gives up; None: it named no deadline.
    timeout: float | None
    # W3C trace context; empty where there is none or it is not well-formed.
    traceparent: str


def caller_of(context: Any) -> Caller:
    remaining = context.time_remaining()
    traceparent = metadata_of(context, "traceparent")
    return Caller(
        request_id=metadata_of(context, "x-request-id")[:_MAX_ID_CHARS] or uuid.uuid4().hex,
        tenant=metadata_of(context, "x-tenant-id")[:_MAX_ID_CHARS],
        timeout=None if remaining is None else float(remaining),
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
    )
