"""Runs a generation and sends its HTTP answer, streamed or whole. An AnswerWriter formats it for one API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from google.api.httpbody_pb2 import HttpBody

from services.router.errors import ApiError, internal, is_failure
from services.router.generation import ChoiceDelta, GenerationRequest, Generator, RequestSpan, Usage, bounded
from services.router.http.json import in_pieces
from services.router.limits import ClientStalledError
from services.router.rpc import Calls

logger = logging.getLogger(__name__)

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
# Events of a stream that are ready at the same time share one message. When the message has _FULL_BYTES, it is sent,
# and the other events go into the next one. No message has more than _LARGEST_BYTES.
_FULL_BYTES = 65_536
_LARGEST_BYTES = 2**20

# Part of a stream. Short data is bytes. Long data is an iterator over pieces, and the iterator makes each piece just
# before the piece is sent.
Written = bytes | Iterator[bytes]


class AnswerWriter(Protocol):
    """Formats one answer for one API. Streamed answers use `events` and `end`; whole answers use `add` and `whole`."""

    # Content type of a stream.
    stream_type: str
    # Whether the last events of a stream repeat all of the answer, so that it is held until then.
    repeats_answer: bool

    def events(self, delta: ChoiceDelta) -> Written:
        """Returns the stream's events for new output; can be empty."""

    def end(self, usage: Usage) -> Written:
        """Returns the last events of a complete stream."""

    def error(self, error: ApiError) -> Written:
        """Returns the last event of a stream that fails after it has begun."""

    def add(self, delta: ChoiceDelta) -> None: ...

    def whole(self, usage: Usage) -> Iterator[str]:
        """Returns the body for all deltas that were passed to `add`, as consecutive texts."""


@dataclass(frozen=True, slots=True)
class Answers:
    calls: Calls
    generator: Generator

    async def send(
        self,
        request: GenerationRequest,
        span: RequestSpan,
        context: Any,
        writer: AnswerWriter,
        *,
        stream: bool,
        max_tokens_param: str = "max_tokens",
    ) -> None:
        """Generates and sends an answer. `max_tokens_param`: name, in errors, of the request field that limits the
        number of output tokens. Raises ApiError if the generation fails before anything is sent."""
        if not stream or writer.repeats_answer:
            request = bounded(request, max_tokens_param)
        await (self._stream if stream else self._whole)(request, span, context, writer)

    async def _stream(self, request: GenerationRequest, span: RequestSpan, context: Any, writer: AnswerWriter) -> None:
        """Streams an answer. Raises an error that occurs before the first byte; sends a later error as the stream's
        last event."""
        stream = _Stream(self.calls, context, writer.stream_type)
        with self.generator.start(request) as generation:
            span.started(request)
            try:
                async for deltas in generation.deltas():
                    for delta in deltas:
                        await stream.add(writer.events(delta))
                    await stream.flush()
            except ClientStalledError:
                raise
            except BaseException as fault:
                if not stream.has_begun or context.done() or not is_failure(fault):
                    raise
                error = fault if isinstance(fault, ApiError) else internal()
                if error is not fault:
                    logger.error("unexpected error in a stream that had begun", exc_info=fault)
                generation.close()
                self.calls.count(error)
                await stream.add(writer.error(error))
                await stream.flush()
                return
            span.ended(generation)
            await stream.add(writer.end(generation.usage))
            await stream.flush()

    async def gather(self, request: GenerationRequest, span: RequestSpan, add: Callable[[ChoiceDelta], None]) -> Usage:
        """Generates an answer and passes all of its deltas to `add`. Sends nothing. Raises ApiError."""
        with self.generator.start(request) as generation:
            span.started(request)
            async for deltas in generation.deltas():
                for delta in deltas:
                    add(delta)
            span.ended(generation)
            return generation.usage

    async def _whole(self, request: GenerationRequest, span: RequestSpan, context: Any, writer: AnswerWriter) -> None:
        usage = await self.gather(request, span, writer.add)
        await write_pieces(self.calls, context, in_pieces(writer.whole(usage)))


async def write_pieces(calls: Calls, context: Any, pieces: Iterator[bytes], content_type: str = JSON) -> None:
    """Sends a body, each piece as one message (see `Calls.write_each`). The gateway joins the pieces."""
    await calls.write_each(context, (HttpBody(content_type=content_type, data=piece) for piece in pieces))


class _Stream:
    """Sends the data of a stream. Collects short data into one message until `flush`; sends long data in pieces."""

    __slots__ = ("_calls", "_context", "_message", "_parts", "_size", "has_begun")

    def __init__(self, calls: Calls, context: Any, content_type: str) -> None:
        self.has_begun = False
        self._calls = calls
        self._context = context
        # All messages reuse one object. This is safe, because a write serializes its message before it waits.
        self._message = HttpBody(content_type=content_type)
        self._parts: list[bytes] = []
        self._size = 0

    async def add(self, written: Written) -> None:
        if isinstance(written, bytes):
            self._parts.append(written)
            self._size += len(written)
            if self._size >= _FULL_BYTES:
                await self.flush()
            return
        await self.flush()
        self.has_begun = True
        await write_pieces(self._calls, self._context, written, self._message.content_type)

    async def flush(self) -> None:
        data, self._parts, self._size = b"".join(self._parts), [], 0
        # One event can be larger than a message, for example if it contains an echoed prompt.
        for start in range(0, len(data), _LARGEST_BYTES):
            self.has_begun = True
            self._message.data = data[start : start + _LARGEST_BYTES]
            await self._calls.write(self._context, self._message)
