"""The connection to one peer, and the calls on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from shared.transport.stream import ClientStream

RequestT = TypeVar("RequestT", bound=Any)
ResponseT = TypeVar("ResponseT", bound=Any)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """A method of a service. `path`: its name in gRPC, such as /package.Service/Method. `request`, `response`: the
    classes of its messages."""

    path: str
    request: type[RequestT]
    response: type[ResponseT]


class Channel(Protocol):
    """Connects to one peer when the first call needs it, and again after the connection was lost."""

    def open(
        self, method: Method[RequestT, ResponseT], *, wait_for_ready: bool = False
    ) -> ClientStream[RequestT, ResponseT]:
        """Starts a bidirectional stream; returns at once. `wait_for_ready`: wait for a peer that cannot be reached. If
        False, the stream ends with UNAVAILABLE."""

    def replies(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> AsyncIterator[ResponseT]:
        """Sends one request and yields the replies. Raises StreamEndedError."""

    async def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Sends one request and returns the reply. Raises StreamEndedError."""

    async def close(self) -> None:
        """Ends all calls."""


# Returns a channel to the peer at an address.
Connect = Callable[[str], Channel]
