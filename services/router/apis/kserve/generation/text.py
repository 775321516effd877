"""Generation in the Open Inference Protocol, for its HTTP form and its gRPC form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from services.router.apis.kserve.generation.body import TextRequest
from services.router.apis.kserve.state import ServerState
from services.router.errors import ApiError
from services.router.generation import ChoiceDelta, GenerationRequest, RequestSpan, Tracing, Usage
from services.router.http import EVENT_STREAM, Answers, dump, texts_of
from services.router.limits import LARGE_BODY_BYTES
from services.router.prompt import check_generates, encode_text, output_budget
from services.router.rpc import Prepared, caller_of
from services.router.text import TextThreads
from shared.placement import chat_key


class GenerateWriter:
    """An AnswerWriter (services/router/http/answers.py) for Triton's generate extension."""

    stream_type = EVENT_STREAM
    repeats_answer = False

    def __init__(self, model: str, version: str, asked: TextRequest) -> None:
        self._head: dict[str, Any] = {"model_name": model, "model_version": version}
        if asked.id is not None:
            self._head["id"] = asked.id
        self._is_one_event = asked.stream is False
        self._has_begun = False
        # Text that is not sent yet.
        self._pieces = [asked.text] if asked.echoes else []

    def events(self, delta: ChoiceDelta) -> bytes:
        self.add(delta)
        if self._is_one_event or not any(self._pieces):
            return b""
        return self._event()

    def end(self, usage: Usage) -> bytes:
        # Every stream has at least one event.
        return self._event() if any(self._pieces) or not self._has_begun else b""

    def error(self, error: ApiError) -> bytes:
        return b"data: " + dump(kserve_error(error)) + b"\n\n"

    def add(self, delta: ChoiceDelta) -> None:
        self._pieces.append(delta.text)

    def whole(self, usage: Usage) -> Iterator[str]:
        return texts_of({**self._head, "text_output": self.text})

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def _event(self) -> bytes:
        event = dump({**self._head, "text_output": self.text})
        self._pieces.clear()
        self._has_begun = True
        return b"data: " + event + b"\n\n"


@dataclass(frozen=True, slots=True)
class TextGeneration:
    state: ServerState
    answers: Answers
    tracing: Tracing
    threads: TextThreads

    async def read(self, num_bytes: int, read: Callable[[], TextRequest]) -> TextRequest:
        """Returns the result of `read`, which converts a request body of `num_bytes` bytes. Large bodies are converted
        in a thread, one at a time, because the conversion can parse JSON inside one of the body's texts, which would
        block the event loop. Raises the errors of `read`."""
        if num_bytes <= LARGE_BODY_BYTES:
            return read()
        async with self.threads.large_bodies.conversion:
            return await self.threads.run_beside(read)

    async def send(self, asked: TextRequest, name: str, version: str, context: Any, *, stream: bool) -> Prepared:
        """Prepares an answer over HTTP. Raises ApiError."""
        with self.tracing.request("text_completion", name, caller_of(context)) as span:
            request = await self._request(asked, name, version, context, span)
            writer = GenerateWriter(name, request.model.info.version, asked)
            return span.prepared(self.answers.send, request, span, context, writer, stream=stream)

    async def text(
        self, asked: TextRequest, name: str, version: str, context: Any, answer_of: Callable[[str, str], Awaitable[Any]]
    ) -> Prepared:
        """Prepares an answer that `answer_of` makes from the whole generated text and the model's version. `answer_of`
        must not refer to the request, which would then stay in memory until the answer is complete. Raises ApiError."""
        with self.tracing.request("text_completion", name, caller_of(context)) as span:
            request = await self._request(asked, name, version, context, span)
            writer = GenerateWriter(name, request.model.info.version, asked)
            return span.prepared(self._text, request, span, writer, answer_of)

    async def _text(
        self,
        request: GenerationRequest,
        span: RequestSpan,
        writer: GenerateWriter,
        answer_of: Callable[[str, str], Awaitable[Any]],
    ) -> Any:
        version = request.model.info.version
        await self.answers.gather(request, span, writer.add)
        return await answer_of(writer.text, version)

    async def _request(
        self, asked: TextRequest, name: str, version: str, context: Any, span: RequestSpan
    ) -> GenerationRequest:
        salt = asked.options.cache_salt
        model = await self.state.model(name, version, lambda: chat_key(name, salt, (("", asked.text),)))
        check_generates(model.info)
        prompt = await encode_text(model, asked.text, "text_input")
        params = ("text_input", "max_tokens")
        max_tokens = output_budget(model.info, len(prompt), asked.options.stop.max_tokens, params)
        return await asked.options.request(model, caller_of(context), span.traceparent, (prompt,), (max_tokens,))


def kserve_error(error: ApiError) -> dict[str, str]:
    """Returns the error in the protocol's format. The format has no field for the parameter's name, but the message
    contains it."""
    return {"error": error.message}
