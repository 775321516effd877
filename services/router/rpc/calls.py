"""What the calls of a router share: the keys that callers need, how answers and errors are sent, and the metadata of a
call."""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

from services.router.errors import ApiError, ErrorBody, ErrorKind
from services.router.limits import StallWatch
from services.router.metrics import RequestMetrics
from services.router.rpc.request_fields import in_proto_terms
from services.router.rpc.status_details import details_metadata

# A call ends when its client has read nothing for so long. Its generation ends too, and frees its place in the batch.
CLIENT_STALL_SECONDS = 60.0
_MAX_ID_CHARS = 128
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Calls:
    """Checks callers' keys, sends answers and errors, and counts the errors."""

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


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rest of a call, from the moment when its request is no longer needed: most often, when it has become tokens.

    A servicer's method returns it. `Guarded` runs it after the method's frame and the request are gone. So neither a
    long answer nor a client that reads slowly keeps a large body in memory.
    """

    answer: Callable[[], Awaitable[Any]]


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
