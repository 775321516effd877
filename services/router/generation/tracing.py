"""Traces requests: one server span each, with OpenTelemetry's gen_ai attributes (semantic conventions 1.41)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec

from services.router.generation.generator import Generation
from services.router.generation.request import GenerationRequest
from services.router.generation.usage import Timings
from services.router.parameters import SamplingParams
from services.router.rpc import Caller, Prepared
from shared.telemetry import current_traceparent, extract_context, tracer

_SAMPLING_ATTRIBUTES = (
    ("gen_ai.request.temperature", "temperature"),
    ("gen_ai.request.top_p", "top_p"),
    ("gen_ai.request.top_k", "top_k"),
    ("gen_ai.request.presence_penalty", "presence_penalty"),
    ("gen_ai.request.frequency_penalty", "frequency_penalty"),
)


P = ParamSpec("P")


class Tracing:
    """Makes request spans. If tracing is not enabled, only forwards the caller's trace context."""

    def __init__(self, enabled: bool) -> None:
        self._tracer = tracer("quire.router") if enabled else None

    def request(self, operation: str, model: str, caller: Caller) -> RequestSpan:
        """Starts a span. `operation`: gen_ai.operation.name, chat, text_completion or embeddings."""
        traceparent = caller.traceparent
        if self._tracer is None:
            return RequestSpan(None, traceparent)
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            f"{operation} {model}",
            context=extract_context(traceparent) if traceparent else None,
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "quire",
                "gen_ai.request.model": model,
                "quire.request_id": caller.request_id,
                **({} if operation == "embeddings" else {"gen_ai.output.type": "text"}),
            },
        )
        return RequestSpan(span, current_traceparent(span) or traceparent)


class RequestSpan:
    """A context manager around a request's work. It can be entered several times: see `go_on`."""

    def __init__(self, span: Any, traceparent: str) -> None:
        self._span = span
        self._goes_on = False
        # The trace context for the scheduler and the workers.
        self.traceparent = traceparent

    def __enter__(self) -> RequestSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        goes_on, self._goes_on = self._goes_on, False
        if self._span is None or (goes_on and kind is None):
            return
        if kind is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(Status(StatusCode.ERROR, str(error)[:256]))
        self._span.end()

    def go_on(self) -> None:
        """Keeps the span open after the current `with` block, unless the block raises. The caller must enter the span
        again, or call `abandon`."""
        self._goes_on = True

    def abandon(self, error: BaseException) -> None:
        """Ends the span with an error. Call it if the span was kept open (see `go_on`), but is not entered again."""
        self.__exit__(type(error), error, None)

    def prepared(self, answer: Callable[P, Awaitable[Any]], *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Returns the rest of the call, which runs `answer(*args, **kwargs)` within this span and then ends the span.
        The arguments must not refer to the request's body, because it should be freed before `answer` runs."""
        self.go_on()

        async def work() -> Any:
            with self:
                return await answer(*args, **kwargs)

        return Prepared(work)

    def started(self, request: GenerationRequest) -> None:
        if self._span is None:
            return
        attributes: dict[str, Any] = {
            "gen_ai.response.model": request.model.info.name,
            "gen_ai.response.id": request.request_id,
            "gen_ai.request.max_tokens": max(request.max_tokens),
            "gen_ai.request.stop_sequences": request.stop_strings,
            **_sampling_attributes(request.sampling),
        }
        if request.n > 1:
            attributes["gen_ai.request.choice.count"] = request.n
        self._span.set_attributes(attributes)

    def ended(self, generation: Generation) -> None:
        if self._span is None:
            return
        self._add_moments(generation.timings)
        usage = generation.usage
        reasons = [reason.name.lower() for reason in generation.finish_reasons if reason is not None]
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.response.finish_reasons": reasons,
            }
        )

    def _add_moments(self, timings: Timings) -> None:
        """Adds events at the moments between which a request waits in the queue, is prefilled, decodes and recovers."""
        now = time.time_ns()
        moments: list[tuple[str, float | None]] = [
            ("scheduled", timings.queue),
            ("first_token", timings.first_token),
            *(("recovered", seconds) for seconds in timings.recovered),
            ("last_token", timings.last_token),
        ]
        for name, seconds in moments:
            if seconds is not None:
                self._span.add_event(name, timestamp=now - int((timings.total - seconds) * 1e9))


def _sampling_attributes(sampling: SamplingParams) -> dict[str, Any]:
    values = ((attribute, getattr(sampling, name)) for attribute, name in _SAMPLING_ATTRIBUTES)
    attributes = {attribute: value for attribute, value in values if value is not None}
    if sampling.seed is not None:
        # OpenTelemetry's integers are signed 64-bit, but seeds are unsigned.
        attributes["gen_ai.request.seed"] = sampling.seed - 2**64 if sampling.seed >= 2**63 else sampling.seed
    return attributes
