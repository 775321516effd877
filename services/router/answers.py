"""From a generation to the bytes of an HTTP answer, streamed or whole, whatever API they are written for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from google.api.httpbody_pb2 import HttpBody

from services.router.calls import Calls
from services.router.errors import ApiError, internal
from services.router.generation import ChoiceDelta, GenerationRequest, Generator, Usage
from services.router.stall_watch import ClientStalledError
from services.router.tracing import RequestSpan

logger = logging.getLogger(__name__)

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


class AnswerWriter(Protocol):
    """One answer in one API's words. A streamed one is asked for `events` and `end`, a whole one for `add` and
    `whole`."""

    # Content type of a stream.
    stream_type: str

    def events(self, delta: ChoiceDelta) -> bytes:
        """What a stream says of it; may be nothing."""

    def end(self, usage: Usage) -> bytes:
        """The stream's last words."""

    def error(self, error: ApiError) -> bytes:
        """A stream's last words where it breaks off, once it has begun."""

    def add(self, delta: ChoiceDelta) -> None: ...

    def whole(self, usage: Usage) -> bytes:
        """The body, of everything added."""


@dataclass(frozen=True, slots=True)
class Answers:
    calls: Calls
    generator: Generator

    async def send(
        self, request: GenerationRequest, span: RequestSpan, context: Any, writer: AnswerWriter, *, stream: bool
    ) -> None:
        """Generates and writes. Raises ApiError as long as nothing is written."""
        if stream:
            await self._stream(request, span, context, writer)
        else:
            await self._whole(request, span, context, writer)

    async def _stream(self, request: GenerationRequest, span: RequestSpan, context: Any, writer: AnswerWriter) -> None:
        """An error before the first byte is the call's status, a later one the stream's last word."""
        has_begun = False
        # One object for all messages: each is serialized before its write waits for anything.
        message = HttpBody(content_type=writer.stream_type)
        with self.generator.start(request) as generation:
            span.started(request)
            try:
                async for deltas in generation.deltas():
                    if data := b"".join([writer.events(delta) for delta in deltas]):
                        has_begun = True
                        message.data = data
                        await self.calls.write(context, message)
            except ClientStalledError:
                raise
            except Exception as fault:
                if not has_begun or context.done():
                    raise
                error = fault if isinstance(fault, ApiError) else internal()
                if error is not fault:
                    logger.error("a stream failed after it had begun", exc_info=fault)
                generation.close()
                self.calls.count(error)
                message.data = writer.error(error)
                await self.calls.write(context, message)
                return
            span.ended(generation)
            message.data = writer.end(generation.usage)
            await self.calls.write(context, message)

    async def gather(self, request: GenerationRequest, span: RequestSpan, add: Callable[[ChoiceDelta], None]) -> Usage:
        """Generates, and adds all of it; nothing is written. Raises ApiError."""
        with self.generator.start(request) as generation:
            span.started(request)
            async for deltas in generation.deltas():
                for delta in deltas:
                    add(delta)
            span.ended(generation)
            return generation.usage

    async def _whole(self, request: GenerationRequest, span: RequestSpan, context: Any, writer: AnswerWriter) -> None:
        usage = await self.gather(request, span, writer.add)
        await self.calls.write(context, HttpBody(content_type=JSON, data=writer.whole(usage)))
