"""Sends spans, and knows whether their endpoint answers, so that one that is down costs neither time nor log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from shared import clock
from shared.grpc_server import NO_RETRIES

# The OTLP exporter's logger. The exporter logs attempts that fail, for as long as the endpoint is down.
LOGGER = "opentelemetry.exporter.otlp.proto.grpc.exporter"
# An endpoint that has not taken spans for so long counts as down.
PATIENCE_S = 1.0


class SpanEndpoint(SpanExporter):
    """Passes spans on to an exporter, which tries again until its timeout. `exporter`: the default sends spans to the
    OTLP endpoint that the environment names."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._exporter = OTLPSpanExporter(channel_options=(NO_RETRIES,)) if exporter is None else exporter
        self._has_failed = False
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
            self._began = None
            self._has_failed = result is not SpanExportResult.SUCCESS
            self._has_logged &= self._has_failed
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
        return self._has_failed or (began is not None and clock.now() - began > PATIENCE_S)

    def _lets_through(self, record: logging.LogRecord) -> bool:
        """Lets the exporter log one warning or error for each time that the endpoint is down."""
        if record.levelno < logging.WARNING:
            return True
        self._has_logged, had_logged = True, self._has_logged
        return not had_logged
