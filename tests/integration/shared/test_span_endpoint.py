"""An endpoint of traces that is down is noticed: it costs one log line, and no wait at the end."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from concurrent import futures

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from shared import span_endpoint
from shared.span_endpoint import SpanEndpoint
from tests.fakes.waiting import HANG_S, wait_until

SPANS = [ReadableSpan("span", SpanContext(1, 1, is_remote=False))]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        return trace_service_pb2.ExportTraceServiceResponse()


def test_each_outage_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
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
