"""OpenTelemetry spans of traced sequences: from their arrival at the scheduler to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.scheduler.core import Sequence
from services.scheduler.sessions.routed_request import RoutedRequest
from services.scheduler.sessions.session import SequenceKey
from shared.telemetry import extract_context, tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class SequenceSpans:
    """The trace spans of unfinished sequences. For a sequence that is not traced, each call costs at most a dictionary
    look-up.
    """

    def __init__(self) -> None:
        self._tracer = tracer("quire.scheduler")
        self._spans: dict[SequenceKey, Span] = {}

    def start(self, sequence: Sequence[RoutedRequest]) -> None:
        request = sequence.request
        if not request.traceparent or self._tracer is None:
            return
        span = self._tracer.start_span("scheduler.sequence", context=extract_context(request.traceparent))
        # The router has turned chats into plain prompts, so the scheduler sees only text completions.
        span.set_attribute("gen_ai.operation.name", "text_completion")
        span.set_attribute("gen_ai.usage.input_tokens", sequence.num_prompt_tokens)
        span.set_attribute("quire.choice_index", request.choice_index)
        span.set_attribute("quire.request_id", request.key.request_id)
        span.set_attribute("quire.attempt", request.key.attempt)
        self._spans[request.key] = span

    def event(self, key: SequenceKey, name: str) -> None:
        """Adds an event that happens now: first_token, preempted or worker_lost."""
        if self._spans and (span := self._spans.get(key)) is not None:
            span.add_event(name)

    def end(self, key: SequenceKey, reason: str) -> None:
        if self._spans and (span := self._spans.pop(key, None)) is not None:
            span.set_attribute("gen_ai.response.finish_reasons", [reason])
            span.end()
