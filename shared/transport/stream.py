"""The two ends of a bidirectional stream of messages.

Messages of one direction arrive in order, none of them twice. A stream can end at any message: the peer has then
received a prefix of what was written. The two ends can learn of the end at different times, or one of them never.
"""

from __future__ import annotations

from typing import NoReturn, Protocol, TypeVar

import grpc

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
SentT = TypeVar("SentT", contravariant=True)
ReceivedT = TypeVar("ReceivedT", covariant=True)


class StreamEndedError(Exception):
    """A call has ended or could not be started. `code` is OK if the server ended its stream without an error."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


class ClientStream(Protocol[SentT, ReceivedT]):
    """The client's end. One task at a time may read, and one at a time may write. If a task is cancelled while it reads
    or writes, the stream ends."""

    async def write(self, message: SentT, /) -> None:
        """Sends a message. Waits while the peer reads too slowly. Raises StreamEndedError."""

    async def read(self) -> ReceivedT:
        """Returns the next message. Raises StreamEndedError at the end of the stream, with the server's status."""

    def cancel(self) -> None:
        """Ends the stream. `read` and `write` then raise StreamEndedError. Idempotent."""


class ServerStream(Protocol[ReceivedT, SentT]):
    """The server's end. When the stream breaks or the client cancels it, the task that serves the call is cancelled."""

    async def read(self) -> ReceivedT | None:
        """Returns the next message; None if the client sends no more."""

    async def write(self, message: SentT, /) -> None:
        """Sends a message. Waits while the peer reads too slowly."""

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the stream with an error, after all messages written so far."""
