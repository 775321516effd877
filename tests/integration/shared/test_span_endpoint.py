"""An endpoint of traces that is down is noticed: it costs one log line, and no wait at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent import futures

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision
from opentelemetry.trace import SpanContext

from shared import clock, span_endpoint, telemetry
from shared.span_endpoint import OutageSampler, SpanEndpoint
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S, wait_until

SPANS = [ReadableSpan("span", SpanContext(1, 1, is_remote=False))]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        return trace_service_pb2.ExportTraceServiceResponse()


def test_each_outage_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    # Too short for the second attempt, which the exporter makes after a second.
    exporter = OTLPSpanExporter(address, insecure=True, timeout=0.5)
    endpoint = SpanEndpoint(exporter)
    with caplog.at_level(logging.DEBUG):
        assert not endpoint.is_down
        assert [endpoint.export(SPANS) for _ in range(3)] == [SpanExportResult.FAILURE] * 3
        assert endpoint.is_down
        (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert address in said
        caplog.clear()
        exporter._timeout = HANG_S
        server = grpc.server(futures.ThreadPoolExecutor(1))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
        assert server.add_insecure_port(address)
        server.start()
        assert endpoint.export(SPANS) is SpanExportResult.SUCCESS
        assert not endpoint.is_down
        server.stop(0).wait()
        exporter._timeout = 0.5
        assert endpoint.export(SPANS) is SpanExportResult.FAILURE
        assert endpoint.is_down
    endpoint.shutdown()


def test_an_exporter_that_raises_counts_as_down_and_one_that_works_does_not() -> None:
    during: list[bool] = []

    class Broken(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            during.append(endpoint.is_down)
            raise OSError("no route")

    endpoint = SpanEndpoint(Broken())
    with pytest.raises(OSError, match="no route"):
        endpoint.export(SPANS)
    assert (during, endpoint.is_down) == ([False], True)
    endpoint.shutdown()


def test_an_endpoint_that_has_not_taken_spans_for_long_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_endpoint, "PATIENCE_S", 0.0)
    may_end = threading.Event()

    class Slow(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            may_end.wait(HANG_S)
            return SpanExportResult.SUCCESS

    endpoint = SpanEndpoint(Slow())
    thread = threading.Thread(target=endpoint.export, args=(SPANS,))
    thread.start()
    wait_until(lambda: endpoint.is_down, 0.01)
    may_end.set()
    thread.join()
    assert not endpoint.is_down
    endpoint.shutdown()


def test_no_spans_are_made_for_an_endpoint_that_is_lost_but_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of them are again, once it takes one."""
    now, result = 0.0, SpanExportResult.FAILURE
    monkeypatch.setattr(clock, "now", lambda: now)

    class Moody(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return result

    endpoint = SpanEndpoint(Moody())
    provider = TracerProvider(sampler=OutageSampler(ALWAYS_ON, endpoint), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(endpoint))
    tracer = provider.get_tracer("test")

    def is_made() -> bool:
        span = tracer.start_span("one")
        span.end()
        return span.is_recording() or isinstance(span, ReadableSpan)

    assert [is_made() for _ in range(3)] == [True] * 3
    now = span_endpoint.OUTAGE_S + 0.1
    assert [is_made() for _ in range(3)] == [True, False, False]
    now += span_endpoint.PROBE_S
    assert [is_made() for _ in range(3)] == [True, False, False]
    result = SpanExportResult.SUCCESS
    assert [is_made() for _ in range(3)] == [False] * 3
    now += span_endpoint.PROBE_S
    assert [is_made() for _ in range(3)] == [True] * 3
    provider.shutdown()


def test_a_span_that_nobody_wants_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sampler that takes few, an endpoint that is back would otherwise stay lost for long."""
    monkeypatch.setattr(clock, "now", lambda: 1000.0)
    monkeypatch.setattr(SpanEndpoint, "is_lost", True)
    endpoint = SpanEndpoint(InMemorySpanExporter())
    sampler = OutageSampler(ALWAYS_OFF, endpoint)
    assert sampler.should_sample(None, 1, "one").decision is Decision.DROP
    sampler._sampler = ALWAYS_ON
    assert sampler.should_sample(None, 1, "two").decision is Decision.RECORD_AND_SAMPLE
    endpoint.shutdown()


def test_the_tracers_of_a_part_ask_whether_the_endpoint_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    providers: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    monkeypatch.setattr(telemetry, "_endpoint", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    assert telemetry.configure_tracing("router")
    (provider,) = providers
    assert telemetry._endpoint is not None
    assert provider.get_tracer("test").start_span("before").is_recording()
    monkeypatch.setattr(SpanEndpoint, "is_lost", True)
    assert [provider.get_tracer("test").start_span("after").is_recording() for _ in range(2)] == [True, False]
    telemetry._endpoint.shutdown()


def test_an_endpoint_that_never_answers_holds_up_no_span_and_keeps_only_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `configure_tracing` sets it up: 100 spans end while the first export waits for its answer."""
    queue_size, batch_size = 8, 4
    may_answer, has_begun = threading.Event(), threading.Event()
    of_requests = threading.current_thread()
    exported: list[str] = []

    class Silent(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            has_begun.set()
            if threading.current_thread() is not of_requests:
                assert may_answer.wait(HANG_S)
            exported.extend(span.name for span in spans)
            return SpanExportResult.SUCCESS

    providers: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    monkeypatch.setattr(span_endpoint, "OTLPSpanExporter", lambda **_: Silent())
    monkeypatch.setattr(telemetry, "_endpoint", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", str(queue_size))
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", str(batch_size))
    assert telemetry.configure_tracing("router")
    (provider,) = providers
    tracer = provider.get_tracer("test")
    names = [str(number) for number in range(100)]
    for name in names[:batch_size]:
        tracer.start_span(name).end()
    assert has_begun.wait(HANG_S)
    for name in names[batch_size:]:
        tracer.start_span(name).end()
    assert exported == [], "the end of a span waited for the export"
    may_answer.set()
    provider.force_flush()
    assert {*names[-queue_size:]} <= {*exported}
    assert len(exported) <= batch_size + queue_size
    provider.shutdown()
