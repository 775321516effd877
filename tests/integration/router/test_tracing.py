"""One span per request, between the caller's and the scheduler's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from google.api.httpbody_pb2 import HttpBody
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from services.router.generation import tracing
from tests.integration.router.conftest import MODEL, StartRouter, fake_scheduler
from tests.integration.router.test_embeddings import embedding_scheduler
from tests.integration.router.test_recovery import pausing, read_rest, read_until, stream

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0.5, "max_tokens": 5}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


async def test_a_span_has_the_conventions_attributes(start_router: StartRouter, spans: InMemorySpanExporter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler, tracing_enabled=True)
    await api.post("CreateChatCompletion", BODY, (("traceparent", PARENT), ("x-request-id", "abc")))
    (span,) = spans.get_finished_spans()
    assert span.name == f"chat {MODEL}"
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" in PARENT
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "quire"
    assert attributes["gen_ai.request.model"] == MODEL
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.request.max_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["gen_ai.usage.output_tokens"] == 5
    (submit,) = scheduler.submits
    assert submit.request_id == "abc"
    assert span.context is not None
    assert submit.traceparent == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


async def test_a_failed_request_s_span_says_so(start_router: StartRouter, spans: InMemorySpanExporter) -> None:
    api = await start_router(fake_scheduler(), tracing_enabled=True)
    await api.refused("CreateChatCompletion", BODY | {"max_tokens": 10_000}, (("x-request-id", "abc"),))
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert "too large" in (span.status.description or "")
    assert (span.attributes or {})["quire.request_id"] == "abc"


async def test_the_span_of_an_embedding_has_the_request_s_id(
    start_router: StartRouter, spans: InMemorySpanExporter
) -> None:
    api = await start_router(embedding_scheduler(), tracing_enabled=True)
    await api.post("CreateEmbedding", {"model": MODEL, "input": "Hello"}, (("x-request-id", "abc"),))
    (span,) = spans.get_finished_spans()
    assert span.name == f"embeddings {MODEL}"
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": MODEL,
        "quire.request_id": "abc",
    }


async def test_each_conversation_of_a_batch_ends_its_span_though_one_is_refused(
    start_router: StartRouter, spans: InMemorySpanExporter
) -> None:
    api = await start_router(fake_scheduler(), tracing_enabled=True)
    good, long = BODY["messages"], [{"role": "user", "content": "Hello " * 1000}]
    await api.refused("CreateChatCompletionBatch", BODY | {"messages": [good, good, long]})
    assert [span.status.status_code for span in spans.get_finished_spans()] == [StatusCode.ERROR] * 3
    spans.clear()
    await api.post("CreateChatCompletionBatch", BODY | {"messages": [good, good]})
    assert [span.status.status_code for span in spans.get_finished_spans()] == [StatusCode.UNSET] * 2


async def test_without_a_collector_the_caller_s_context_is_passed_on(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    call = api.stub.CreateChatCompletion(HttpBody(data=json.dumps(BODY).encode()), metadata=(("traceparent", PARENT),))
    assert [message async for message in call]
    assert scheduler.submits[0].traceparent == PARENT
    await api.post("CreateChatCompletion", BODY, (("traceparent", "00-not-a-trace-01"),))
    assert scheduler.submits[1].traceparent == ""


async def test_a_span_shows_tokens_and_a_recovery(start_router: StartRouter, spans: InMemorySpanExporter) -> None:
    resume = asyncio.Event()
    first, second = (fake_scheduler(pausing(5, resume)) for _ in range(2))
    api = await start_router(first, second, tracing_enabled=True)
    while not all(connection.is_ready for connection in api.router.placement.connections):
        await api.get("GetHealth")
    call = await stream(api)
    await read_until(call, 2)
    await (first if first.submits else second).stop()
    await read_rest(call)
    (span,) = spans.get_finished_spans()
    names = [event.name for event in span.events]
    assert names == ["first_token", "recovered", "last_token"]
    moments = [event.timestamp for event in span.events]
    assert moments == sorted(moments)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= moments[0]
    assert moments[-1] <= span.end_time
