"""Authentication and errors around each method of a servicer.

By default, a method runs, and its request is read, only for callers with a valid key. So callers without a key cannot
fill the queue of large requests, and learn nothing about the server. `@public` opens a method to all callers. main.py
registers only `Guarded` servicers, so every method that is not public checks the key.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from services.router.errors import ApiError, ErrorBody, ErrorKind, internal, invalid, is_failure
from services.router.limits import ClientStalledError, leave_large_bodies
from services.router.rpc.calls import CLIENT_STALL_SECONDS, Calls, Prepared, begin_request, metadata_of
from services.router.rpc.request_fields import check_enums
from shared.grpc_server import MAX_MESSAGE_BYTES
from shared.malformed import MalformedRequestError

logger = logging.getLogger(__name__)

_Method = Callable[[Any, Any], Awaitable[Any]]
_M = TypeVar("_M", bound=Callable[..., Awaitable[Any]])


def public(method: _M) -> _M:
    """Marks a servicer's method as open to callers without a key."""
    method.is_public = True  # type: ignore[attr-defined]  # functions take any attribute
    return method


def errors_for(header: str, error_body: ErrorBody) -> Callable[[_M], _M]:
    """Marks a servicer's method that two APIs share: calls with `header` get errors in the shape that `error_body`
    makes."""

    def mark(method: _M) -> _M:
        method.errors_for = (header, error_body)  # type: ignore[attr-defined]
        return method

    return mark


class UnreadRequest(Protocol):
    """A request that must not be parsed before the caller is authenticated."""

    @property
    def DESCRIPTOR(self) -> Any:  # noqa: N802  # as messages have it
        """Descriptor of the request's type."""

    async def read(self) -> Any:
        """Parses the request. Raises ApiError and UndecodableRequestError."""


class _HasCalls(Protocol):
    @property
    def calls(self) -> Calls: ...


class Guarded:
    """Wraps a servicer for the generated `add_…_to_server` functions. The wrapper's methods authenticate the caller and
    convert the servicer's exceptions into the call's status."""

    def __init__(self, servicer: _HasCalls) -> None:
        self._servicer = servicer

    def __getattr__(self, name: str) -> _Method:
        return _guarded(getattr(self._servicer, name), self._servicer.calls)


def _guarded(method: _Method, calls: Calls) -> _Method:
    needs_key = not getattr(method, "is_public", False)
    errors: tuple[str, ErrorBody] | None = getattr(method, "errors_for", None)

    @functools.wraps(method)
    async def call(request: Any, context: Any) -> Any:
        begin_request(context)
        shaped = calls
        if errors is not None and metadata_of(context, errors[0]):
            shaped = calls.with_errors(errors[1])
        descriptor = request.DESCRIPTOR
        try:
            is_read = isinstance(request, Message)
            # An unparsed request might have to wait in the queue of large requests. Callers without a key must not
            # enter this queue, so an unparsed request needs a key even if its method is public.
            if needs_key or not is_read:
                calls.authenticate(context)
            if not is_read:
                request = await request.read()
            check_enums(request)
            answering = method(request, context)
            # From here on, only the method's own frame refers to the request.
            del request
            answer = await answering
            if isinstance(answer, Prepared):
                leave_large_bodies()
                answer = await answer.answer()
            # grpc would report RESOURCE_EXHAUSTED for an answer that is too large, and clients would retry. The error
            # raised here has a status after which clients do not retry.
            if isinstance(answer, Message):
                if (size := answer.ByteSize()) > MAX_MESSAGE_BYTES:
                    message = f"The answer has {size} bytes, more than the maximum of {MAX_MESSAGE_BYTES}."
                    raise invalid(f"{message} Ask for less in one request.")
                calls.unread.hold(size, context)
            return answer
        except ApiError as raised:
            # Drops the traceback and context, because they form a reference cycle with this frame. The cycle would keep
            # the request's body in memory until the next garbage collection.
            error = raised.with_traceback(None)
            error.__context__ = None
        except ClientStalledError:
            logger.warning("ended %s: the client read nothing for %g s", method.__name__, CLIENT_STALL_SECONDS)
            # The status waits in a queue behind data that the client has not read. If this method returns, grpc sends
            # the status later without the task. context.abort would keep the task, and so the call's memory, until the
            # status is sent.
            error = ApiError(ErrorKind.TIMEOUT, "The client read its answer too slowly.")
            calls.end_later(context, error, descriptor)
            return None
        except MalformedRequestError:
            raise
        except BaseException as fault:
            if context.done() or not is_failure(fault):
                raise
            logger.error("unexpected error in %s", method.__name__, exc_info=fault)
            error = internal()
        finally:
            leave_large_bodies()
        await shaped.abort(context, error, descriptor)
        raise AssertionError("abort returned")

    return call
