"""One request is one trace: a collector of the test's own gets the spans of gateway, router, scheduler and
worker."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import httpx
import openai
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from tests.e2e.conftest import serving
from tests.fakes.waiting import HANG_S


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps spans, each with the service's name."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, trace_pb2.Span]] = []
        self.more = threading.Condition()

    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self.more:
            for resource in request.resource_spans:
                attributes = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.spans += [(attributes["service.name"], span) for span in scope.spans]
            self.more.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(0)


def test_one_request_is_one_trace(collector: tuple[Collector, str]) -> None:
    """So few requests without a trace of their own get one that none does. The one with a trace keeps it."""
    spans, endpoint = collector
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.000001",
    }  # fmt: skip
    with mock.patch.dict(os.environ, variables), serving(model="quire-chat") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        for _ in range(5):
            client.completions.create(model=server.model, prompt="Hello", max_tokens=1)
        client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "Hello!"}],
            extra_headers={
                "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
                "x-request-id": "mine",
            },
        )
        with spans.more:
            assert spans.more.wait_for(lambda: len(spans.spans) >= 4, HANG_S), spans.spans
    assert len(spans.spans) == 4
    by_service = dict(spans.spans)
    assert set(by_service) == {"quire-gateway", "quire-router", "quire-scheduler", "quire-worker"}
    gateway_span = by_service.pop("quire-gateway")
    assert gateway_span.name == "POST /v1/chat/completions"
    assert gateway_span.trace_id.hex() == "0123456789abcdef0123456789abcdef"
    assert gateway_span.parent_span_id.hex() == "0123456789abcdef"
    assert {span.trace_id.hex() for span in by_service.values()} == {"0123456789abcdef0123456789abcdef"}
    router_span = by_service["quire-router"]
    assert router_span.parent_span_id == gateway_span.span_id
    assert [event.name for event in router_span.events] == ["scheduled", "first_token", "last_token"]
    assert [event.name for event in by_service["quire-scheduler"].events] == ["first_token"]
    assert by_service["quire-scheduler"].parent_span_id == router_span.span_id
    assert by_service["quire-worker"].parent_span_id == router_span.span_id

    # The client's own id is in every span. Envoy calls it by a name of its own.
    keys = dict.fromkeys(by_service, "quire.request_id") | {"quire-gateway": "guid:x-request-id"}
    for service, span in (*by_service.items(), ("quire-gateway", gateway_span)):
        ids = [attribute.value.string_value for attribute in span.attributes if attribute.key == keys[service]]
        assert ids == ["mine"], service

    conventions = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    for span in by_service.values():
        names = {attribute.key for attribute in span.attributes if attribute.key.startswith("gen_ai.")}
        assert "gen_ai.operation.name" in names
        assert names <= conventions


def test_prompts_and_answers_are_in_no_log_and_no_span(collector: tuple[Collector, str], tmp_path: Path) -> None:
    spans, endpoint = collector
    secret = "Xylophone-4711"
    logs = [tmp_path / name for name in ("output", "access", "steps")]
    options = ("--log-level", "debug", "--access-log", str(logs[1]), "--step-log", str(logs[2]))
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    chat = {"messages": [{"role": "user", "content": secret}], "max_tokens": 4}
    requests: list[tuple[str, dict[str, Any], int]] = [
        ("chat/completions", chat, 200),
        ("completions", {"prompt": [secret, f"{secret} again"], "max_tokens": 4, "echo": True, "logprobs": 2}, 200),
        ("responses", {"input": secret, "max_output_tokens": 16}, 200),
        ("embeddings", {"input": secret}, 200),
        ("chat/completions", chat | {"messages": [{"role": "user", "content": {"text": secret}}]}, 400),
        ("completions", {"prompt": secret * 10_000}, 400),
        ("completions", {"prompt": {"text": secret}}, 400),
    ]

    def num_of_gateway() -> int:
        return [service for service, _ in spans.spans].count("quire-gateway")

    with (
        mock.patch.dict(os.environ, variables),
        logs[0].open("w+") as output,
        serving(*options, model="quire-chat", output=output) as server,
    ):
        for path, body, status in requests:
            # A client's own request id does not keep a request from being traced.
            headers = {"x-request-id": f"{path} {status}"}
            answer = httpx.post(
                f"{server.url}/v1/{path}", json={"model": server.model, **body}, headers=headers, timeout=HANG_S
            )
            assert answer.status_code == status, answer.text
        cut = json.dumps(chat)[:-9]
        assert httpx.post(f"{server.url}/v1/chat/completions", content=cut, timeout=HANG_S).status_code == 400
        with spans.more:
            assert spans.more.wait_for(lambda: len(spans.spans) >= 12 and num_of_gateway() >= len(requests), HANG_S)
    for log in logs:
        assert log.stat().st_size > 100
        assert secret[:9] not in log.read_text(), log.name
    assert not [span for _, span in spans.spans if secret[:9].encode() in span.SerializeToString()]


def test_prompts_are_logged_if_the_operator_asks_for_it(tmp_path: Path) -> None:
    log = tmp_path / "output"
    options = ("-v", "--log-prompts", "14")
    with log.open("w+") as output, serving(*options, model="quire-chat", output=output) as server:
        for path, body in (
            ("completions", {"prompt": ["Köln am Rhein is old.", "Hi"], "max_tokens": 1}),
            ("embeddings", {"input": "Rhein"}),
        ):
            headers = {"x-request-id": f"my {path}"}
            reply = httpx.post(
                f"{server.url}/v1/{path}", json={"model": server.model, **body}, headers=headers, timeout=HANG_S
            )
            assert reply.status_code == 200, reply.text
    lines = re.findall(r"a prompt of (\d+) tokens for quire-chat: (.*)", log.read_text())
    assert [rest for _, rest in lines] == [
        '"Köln am Rhein " (request my completions)',
        '"Hi" (request my completions)',
        '"Rhein" (request my embeddings)',
    ]
    assert all(int(number) > 0 for number, _ in lines)


@pytest.mark.parametrize("accepts", [False, True], ids=["refuses connections", "accepts them and never answers"])
def test_an_endpoint_that_does_not_answer_costs_no_answer_and_no_end(accepts: bool) -> None:
    """The server answers and stops with status 0; `serving` checks the latter."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if accepts:
            silent.listen()
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        with mock.patch.dict(os.environ, variables), serving(model="quire-chat") as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            for _ in range(3):
                answer = client.completions.create(model=server.model, prompt="Hello", max_tokens=5)
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 5
