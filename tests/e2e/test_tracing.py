"""One request is one trace: a collector of the test's own gets the spans of gateway, router, scheduler and
worker."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
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
from tests.e2e.parts import pid_of
from tests.e2e.worker_script import run_out_of_memory
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
    with collecting() as collector:
        yield collector


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
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


SECRET = "Xylophone-4711"


@dataclass(frozen=True)
class Said:
    """What all parts said about requests. `output`: of `quire serve -v`, with each part's own lines."""

    output: Path
    access_log: Path
    step_log: Path
    spans: Sequence[trace_pb2.Span]

    def entries(self) -> list[dict[str, str]]:
        """Returns the parts' own lines, each of which follows the part's name."""
        lines = (line.partition(" | ")[2] for line in self.output.read_text().splitlines())
        return [json.loads(line) for line in lines if line.startswith("{")]

    def accesses(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.access_log.read_text().splitlines()]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Of requests with the secret, each with an id of its own. The last one fails: the worker runs out of memory."""
    directory = tmp_path_factory.mktemp("said")
    output_log, access_log, step_log = (directory / name for name in ("output", "access", "steps"))
    options = ("-v", "--log-format", "json", "--log-level", "debug")
    files = ("--access-log", str(access_log), "--step-log", str(step_log))
    chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}
    requests: list[tuple[str, dict[str, Any], int]] = [
        ("chat/completions", chat, 200),
        ("completions", {"prompt": [SECRET, f"{SECRET} again"], "max_tokens": 4, "echo": True, "logprobs": 2}, 200),
        ("responses", {"input": SECRET, "max_output_tokens": 16}, 200),
        ("embeddings", {"input": SECRET}, 200),
        ("chat/completions", chat | {"messages": [{"role": "user", "content": {"text": SECRET}}]}, 400),
        ("completions", {"prompt": SECRET * 10_000}, 400),
        ("completions", {"prompt": {"text": SECRET}}, 400),
        ("chat/completions", chat, 500),
    ]

    def num_of_gateway() -> int:
        return [service for service, _ in spans.spans].count("quire-gateway")

    with (
        collecting() as (spans, endpoint),
        mock.patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}),
        output_log.open("w+") as output,
        serving(*options, *files, model="quire-chat", output=output) as server,
    ):
        for path, body, status in requests:
            if status == 500:
                server.script.give(pid_of("worker", server), run_out_of_memory())
            # A client's own request id does not keep a request from being traced.
            headers = {"x-request-id": f"{path} {status}"}
            answer = httpx.post(
                f"{server.url}/v1/{path}", json={"model": server.model, **body}, headers=headers, timeout=HANG_S
            )
            assert answer.status_code == status, answer.text
            assert answer.headers["x-request-id"] == headers["x-request-id"]
        cut = json.dumps(chat)[:-9]
        assert httpx.post(f"{server.url}/v1/chat/completions", content=cut, timeout=HANG_S).status_code == 400
        with spans.more:
            assert spans.more.wait_for(lambda: len(spans.spans) >= 12 and num_of_gateway() >= len(requests), HANG_S)
    return Said(output_log, access_log, step_log, [span for _, span in spans.spans])


def test_prompts_and_answers_are_in_no_log_and_no_span(said: Said) -> None:
    for log in (said.output, said.access_log, said.step_log):
        assert log.stat().st_size > 100
        assert SECRET[:9] not in log.read_text(), log.name
    assert not [span for span in said.spans if SECRET[:9].encode() in span.SerializeToString()]


def test_each_part_logs_the_id_of_a_request_that_the_worker_fails(said: Said) -> None:
    name = "chat/completions 500"
    about = [entry for entry in said.entries() if entry.get("request_id") == name]
    assert {entry["service"] for entry in about} == {"router", "scheduler", "worker"}
    assert {entry["level"] for entry in about} == {"warning"}
    assert [access["status"] for access in said.accesses() if access["request_id"] == name] == [500]


def test_no_part_logs_a_request_that_succeeds_or_is_wrong(said: Said) -> None:
    """Not even at the level debug. The gateway's access log has them."""
    ids = {access["request_id"] for access in said.accesses() if access["status"] < 500}
    assert {"completions 200", "completions 400"} < ids
    assert ids.isdisjoint(entry.get("request_id") for entry in said.entries())


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
    """The server answers, though a part has room for one span that waits, and stops with status 0; `serving` checks the
    latter."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if accepts:
            silent.listen()
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "1",
        }  # fmt: skip
        with mock.patch.dict(os.environ, variables), serving(model="quire-chat") as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            for _ in range(3):
                answer = client.completions.create(model=server.model, prompt="Hello", max_tokens=5)
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 5
