"""A trace span per sequence, from its arrival on this worker to its release."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.worker.plan import NewSequence
from shared.telemetry import extract_context, tracer


@dataclass(slots=True)
class _Record:
    span: Any
    started_at: float
    num_output_tokens: int
    first_token_at: float | None = None


class SequenceSpans:
    """Trace spans of the sequences that are traced. If no sequence is traced, each call returns at once."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}  # by slot

    def start(self, sequence: NewSequence) -> None:
        if not sequence.traceparent:
            return
        source = tracer("quire.worker")
        if source is None:
            return
        span = source.start_span("worker.sequence", context=extract_context(sequence.traceparent))
        # Always text completion: the router has already turned a chat into a prompt.
        span.set_attribute("gen_ai.operation.name", "text_completion")
        span.set_attribute("gen_ai.usage.input_tokens", sequence.num_prompt_tokens)
        span.set_attribute("quire.request_id", sequence.request_id)
        span.set_attribute("quire.num_computed_tokens", sequence.num_computed_tokens)
        known_output = len(sequence.token_ids) - sequence.num_prompt_tokens
        self._records[sequence.slot] = _Record(span, time.monotonic(), known_output)

    def count(self, slots: Iterable[int]) -> None:
        """Notes that one token was sampled for each of these slots."""
        if not self._records:
            return
        for slot in slots:
            record = self._records.get(int(slot))
            if record is None:
                continue
            record.num_output_tokens += 1
            if record.first_token_at is None:
                record.first_token_at = time.monotonic()
                record.span.add_event("first_token")

    def end(self, slot: int) -> None:
        record = self._records.pop(slot, None) if self._records else None
        if record is None:
            return
        record.span.set_attribute("gen_ai.usage.output_tokens", record.num_output_tokens)
        if record.first_token_at is not None:
            seconds = record.first_token_at - record.started_at
            record.span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
        record.span.end()

    def end_all(self) -> None:
        for slot in list(self._records):
            self.end(slot)
