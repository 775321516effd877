"""Authentication and errors around each method of a servicer.

A method is closed: it runs, and its request is read, only for callers with a key. So a caller without one takes no turn
of others and learns nothing. `@public` opens a method to everybody. Servers are given `Guarded` servicers only
(services/router/main.py), so that no method can be served without this.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from services.router.errors import ApiError, internal, invalid
from services.router.limits import ClientStalledError, leave_large_bodies
from services.router.rpc.calls import CLIENT_STALL_SECONDS, Calls, Prepared
from services.router.rpc.request_fields import check_enums
from shared.grpc_server import MAX_MESSAGE_BYTES
from shared.malformed import MalformedRequestError

logger = logging.getLogger(__name__)

_Method = Callable[[Any, Any], Awaitable[Any]]
_M = TypeVar("_M", bound=Callable[..., Awaitable[Any]])


def public(method: _M) -> _M:
    """Declares a servicer's method open to callers without a key."""
    method.is_public = True  # type: ignore[attr-defined]
    return method


class UnreadRequest(Protocol):
    """Stands for a request that must not be parsed before the caller is authenticated."""

    @property
    def DESCRIPTOR(self) -> Any:  # noqa: N802  # as messages have it
        """The request's type."""

    async def read(self) -> Any:
        """The request. Raises ApiError, and UndecodableRequestError."""


class _HasCalls(Protocol):
    @property
    def calls(self) -> Calls: ...


class Guarded:
    """A servicer for the generated `add_…_to_server` functions. Its methods authenticate the caller, and turn errors
    that the servicer raises into the call's status."""

    def __init__(self, servicer: _HasCalls) -> None:
        self._servicer = servicer

    def __getattr__(self, name: str) -> _Method:
        return _guarded(getattr(self._servicer, name), self._servicer.calls)


def _guarded(method: _Method, calls: Calls) -> _Method:
    needs_key = not getattr(method, "is_public", False)

    @functools.wraps(method)
    async def call(request: Any, context: Any) -> Any:
        descriptor = request.DESCRIPTOR
        try:
            is_read = isinstance(request, Message)
            # Reading a request takes a turn among the large ones. Callers without a key get none.
            if needs_key or not is_read:
                calls.authenticate(context)
            if not is_read:
                request = await request.read()
            check_enums(request)
            answering = method(request, context)
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
            # Without its traceback and context: this frame would keep them, and the request's body with them, until the
            # next garbage collection.
            error = raised.with_traceback(None)
            error.__context__ = None
        except ClientStalledError:
            logger.warning("%s: the client read nothing for %g s: call ended", method.__name__, CLIENT_STALL_SECONDS)
            # The status waits behind the data that the client has not read, so grpc sends it by itself. context.abort
            # would keep this task, and all that the call holds, until then.
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
        await calls.abort(context, error, descriptor)
        raise AssertionError("abort returned")

    return call
