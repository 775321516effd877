"""Sends spans, and knows whether their endpoint answers. While it is down, nearly no spans are made, so that it costs
almost no time, and the outage is logged once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from shared import clock
from shared.grpc_server import NO_RETRIES

# The OTLP exporter's logger. The exporter logs attempts that fail, for as long as the endpoint is down.
LOGGER = "opentelemetry.exporter.otlp.proto.grpc.exporter"
# An endpoint that has not taken spans for so long counts as down.
PATIENCE_S = 1.0
# After an outage of OUTAGE_S, no spans are made until the endpoint answers, except one in PROBE_S, which tries it
# again. Spans of a shorter outage wait in a queue and are sent later.
OUTAGE_S = 10.0
PROBE_S = 5.0


class SpanEndpoint(SpanExporter):
    """Passes spans on to an exporter, which tries again until its timeout. `exporter`: the default sends spans to the
    OTLP endpoint that the environment names."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._exporter = OTLPSpanExporter(channel_options=(NO_RETRIES,)) if exporter is None else exporter
        # When the first of the exports that have failed since the last success began.
        self._failing_since: float | None = None
        # When the export that runs began.
        self._began: float | None = None
        self._has_logged = False
        logging.getLogger(LOGGER).addFilter(self._lets_through)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        self._began = clock.now()
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._failing_since = None
                self._has_logged = False
            elif self._failing_since is None:
                self._failing_since = self._began
            self._began = None
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._exporter.shutdown()
        logging.getLogger(LOGGER).removeFilter(self._lets_through)

    @property
    def is_down(self) -> bool:
        """Whether the last export failed, or the one that runs takes long."""
        began = self._began
        return self._failing_since is not None or (began is not None and clock.now() - began > PATIENCE_S)

    @property
    def is_lost(self) -> bool:
        """Whether the endpoint has taken nothing for longer than OUTAGE_S, although there were spans."""
        since = self._began if self._failing_since is None else self._failing_since
        return since is not None and clock.now() - since > OUTAGE_S

    def _lets_through(self, record: logging.LogRecord) -> bool:
        """Lets the exporter log one warning or error for each time that the endpoint is down."""
        if record.levelno < logging.WARNING:
            return True
        self._has_logged, had_logged = True, self._has_logged
        return not had_logged


class OutageSampler(Sampler):
    """Asks another sampler, but drops nearly all spans while the endpoint is lost, because they could not be sent."""

    def __init__(self, sampler: Sampler, endpoint: SpanEndpoint) -> None:
        self._sampler = sampler
        self._endpoint = endpoint
        self._probed_at = -PROBE_S

    def should_sample(self, *span: Any, **further: Any) -> SamplingResult:
        result = self._sampler.should_sample(*span, **further)
        if result.decision is not Decision.DROP and self._endpoint.is_lost:
            now = clock.now()
            if now - self._probed_at < PROBE_S:
                return SamplingResult(Decision.DROP)
            self._probed_at = now
        return result

    def get_description(self) -> str:
        return f"OutageSampler({self._sampler.get_description()})"
