"""Functions for all RPCs: checking API keys, sending answers and errors, and reading a call's metadata."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

from services.router.errors import ApiError, ErrorBody, ErrorKind
from services.router.limits import StallWatch, UnreadAnswers
from services.router.metrics import RequestMetrics
from services.router.rpc.request_fields import in_proto_terms
from services.router.rpc.status_details import details_metadata
from shared import log

logger = logging.getLogger(__name__)

# A call ends if its client reads nothing for this long. The call's sequences then leave the scheduler's batch.
CLIENT_STALL_SECONDS = 60.0
_MAX_ID_CHARS = 128
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Calls:
    """Checks callers' keys, sends answers and errors, and counts the errors."""

    def __init__(self, api_keys: Iterable[str], metrics: RequestMetrics) -> None:
        """`api_keys`: accepted keys; if empty, no key is needed. Errors are sent in OpenAI's format (see
        `with_errors`)."""
        self._keys = [key.encode() for key in api_keys]
        self._metrics = metrics
        self._error_body: ErrorBody | None = None
        self._is_typed = False
        self._stalls = StallWatch(CLIENT_STALL_SECONDS)
        self._long_answer_turn = asyncio.Lock()
        self.unread = UnreadAnswers()

    def with_errors(self, error_body: ErrorBody) -> Calls:
        """Returns a copy that sends errors in another API's shape, which `error_body` makes. The copy shares all state:
        for example, the long answers of all APIs take turns (see `write_each`)."""
        calls = copy(self)
        calls._error_body = error_body
        return calls

    def typed(self) -> Calls:
        """Returns a copy for the typed gRPC APIs: its errors name fields by their paths in the proto, and have
        google.rpc details. The copy shares all state."""
        calls = copy(self)
        calls._is_typed = True
        return calls

    def authenticate(self, context: Any) -> None:
        """Raises ApiError unless the call has a valid key, as a bearer token or in Anthropic's header `x-api-key`."""
        if not self._keys:
            return
        scheme, _, token = metadata_of(context, "authorization").partition(" ")
        if not token and (key := metadata_of(context, "x-api-key")):
            scheme, token = "bearer", key
        given = token.strip().encode()
        # Compares with every key, in constant time, so that the response time reveals nothing about the keys.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            what = "Incorrect API key provided." if token else "You didn't provide an API key."
            message = f"{what} Send it in a header: Authorization: Bearer YOUR_KEY."
            raise ApiError(ErrorKind.UNAUTHENTICATED, message)

    async def abort(self, context: Any, error: ApiError, descriptor: Any) -> None:
        """Ends the call with this error; never returns. `descriptor`: descriptor of the request's type."""
        error, metadata = self._ending(error, descriptor)
        await context.abort(error.kind.status, error.details(), trailing_metadata=metadata)

    def end_later(self, context: Any, error: ApiError, descriptor: Any) -> None:
        """Sets the error with which the call ends once its method has returned."""
        error, metadata = self._ending(error, descriptor)
        context.set_code(error.kind.status)
        context.set_details(error.details())
        context.set_trailing_metadata(metadata)

    def _ending(self, error: ApiError, descriptor: Any) -> tuple[ApiError, tuple[tuple[str, str | bytes], ...]]:
        """Counts the error. Returns it in the client's terms, and the call's trailing metadata."""
        self.count(error)
        details: tuple[tuple[str, str | bytes], ...] = ()
        if self._is_typed:
            error = in_proto_terms(error, descriptor)
            details = details_metadata(error)
        return error, (*error.metadata(self._error_body), *details)

    def write(self, context: Any, message: Any) -> Awaitable[None]:
        """Sends one message of the answer. Raises ClientStalledError if the client does not read it in time."""
        return self._stalls.over(context.write(message))

    async def write_each(self, context: Any, messages: Iterator[Any]) -> None:
        """Sends a long answer. Makes each message after the client has taken the one before. All long answers together
        make at most one message per turn of the event loop, so that they do not block it."""
        while True:
            async with self._long_answer_turn:
                message = next(messages, None)
                await asyncio.sleep(0)
            if message is None:
                return
            await self.write(context, message)

    def count(self, error: ApiError) -> None:
        """Counts an error that a client gets, and logs it if the client could not have avoided it: a line for each
        request that a busy server refuses would make it busier. A probe that learns that the router is not ready has
        met no error."""
        if error.is_of_probe:
            return
        if error.kind.is_own_fault:
            logger.warning("answered %s: %s", error.kind.status.name, error.message)
        self._metrics.errors[error.kind.status.name.lower()] += 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """The part of a call that no longer needs the request, usually because the prompt is tokenized.

    A servicer's method returns this object. `Guarded` runs `answer` after it has released the method's frame and the
    request. So neither a long answer nor a slow client keeps a large body in memory.
    """

    answer: Callable[[], Awaitable[Any]]


def metadata_of(context: Any, name: str) -> str:
    """Returns the first value of a metadata key (for HTTP requests, of a header), or an empty string."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""


@dataclass(frozen=True, slots=True)
class Caller:
    """Information about a caller from the call's metadata (for HTTP requests, from the headers)."""

    # The caller's x-request-id, or a random id: see `begin_request`.
    request_id: str
    # The x-tenant-id that the gateway or the caller sets, or empty.
    tenant: str
    # Seconds until the caller's deadline; None: there is no deadline.
    timeout: float | None
    # W3C trace context; empty if it is absent or malformed.
    traceparent: str


def begin_request(context: Any) -> None:
    """Makes the caller's x-request-id, or a new id, the id of the request that this task answers."""
    log.request_id.set(metadata_of(context, "x-request-id")[:_MAX_ID_CHARS] or uuid.uuid4().hex)


def caller_of(context: Any) -> Caller:
    remaining = context.time_remaining()
    traceparent = metadata_of(context, "traceparent")
    return Caller(
        request_id=log.request_id.get(),
        tenant=metadata_of(context, "x-tenant-id")[:_MAX_ID_CHARS],
        timeout=None if remaining is None else float(remaining),
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
    )
