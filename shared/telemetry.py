"""Traces. They are optional: a service runs without their libraries.

Traces go to the OTLP endpoint in OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. If neither is set,
`tracer()` returns OpenTelemetry's no-op tracer.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from shared.span_endpoint import SpanEndpoint

logger = logging.getLogger(__name__)

# Longest time that a part waits at its end until its last spans are sent.
LAST_EXPORT_S = 1.0
# Where the process sends its spans, once it does.
_endpoint: SpanEndpoint | None = None


def configure_tracing(service: str) -> bool:
    """Starts to export spans if the environment sets an OTLP endpoint. Returns whether the export has started."""
    if not (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return False
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from shared.span_endpoint import OutageSampler, SpanEndpoint
    except ImportError:
        logger.warning("an OTLP endpoint is set, but no traces are sent, because opentelemetry-sdk is not installed")
        return False
    # At exit, OpenTelemetry would wait for an endpoint that does not answer, some seconds in each part.
    provider = TracerProvider(resource=Resource.create({"service.name": f"quire-{service}"}), shutdown_on_exit=False)
    endpoint = SpanEndpoint()
    provider.sampler = OutageSampler(provider.sampler, endpoint)
    provider.add_span_processor(BatchSpanProcessor(endpoint))
    trace.set_tracer_provider(provider)
    global _endpoint
    _endpoint = endpoint
    return True


def shutdown_tracing() -> None:
    """Exports the buffered spans, for LAST_EXPORT_S at most, and stops the exporter. Drops them if the endpoint
    was down when it was last tried."""
    try:
        from opentelemetry import trace
    except ImportError:
        return
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None and not (_endpoint is not None and _endpoint.is_down):
        closing = threading.Thread(target=shutdown, daemon=True)
        closing.start()
        closing.join(LAST_EXPORT_S)


def tracer(name: str) -> Tracer | None:
    """Returns a tracer, or None if opentelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer(name)


def extract_context(traceparent: str) -> Any:
    """Returns the OpenTelemetry context of a W3C traceparent, for `start_span(context=...)`."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def current_traceparent(span: Any) -> str:
    """Returns the W3C traceparent of a recording span; an empty string for any other span."""
    context = span.get_span_context()
    if not (context.is_valid and span.is_recording()):
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
