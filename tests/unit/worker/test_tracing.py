"""A traced sequence leaves a span under its request's; one that is not traced leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.worker.plan.step_plan import GeneratingSequence, Rows, StepPlan
from tests.fakes.spans import TRACEPARENT, keep_spans
from tests.unit.worker.driver import GREEDY, NO_ROWS, column
from tests.unit.worker.tiny_models import make_runner, save_model


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return keep_spans(monkeypatch)


@pytest.mark.usefixtures("one_thread")
def test_a_span_from_arrival_to_release(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path)
    sequences = tuple(
        GeneratingSequence(
            index,
            index,
            column([5, 6, 7]),
            3,
            0,
            column([index]),
            GREEDY,
            0,
            traceparent=traceparent,
            request_id="mine",
        )
        for index, traceparent in enumerate(("", TRACEPARENT))
    )
    for position in (0, 3, 4):
        new, scheduled = (sequences, 3) if position == 0 else ((), 1)
        both = Rows(
            column([0, 1]), column([0, 1]), column([scheduled] * 2), column([position] * 2), column([0] * 3), column([])
        )
        runner.collect(runner.launch(StepPlan(1, 1, column([]), new, both), received_at=0.0))
    assert exporter.get_finished_spans() == ()
    runner.collect(runner.launch(StepPlan(1, 4, column([0, 1]), (), NO_ROWS), received_at=0.0))
    (span,) = exporter.get_finished_spans()
    assert span.name == "worker.sequence"
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACEPARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert span.attributes is not None
    assert span.attributes["gen_ai.operation.name"] == "text_completion"
    assert span.attributes["quire.request_id"] == "mine"
    assert span.attributes["gen_ai.usage.input_tokens"] == 3
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert [event.name for event in span.events] == ["first_token"]
    seconds = span.attributes["gen_ai.response.time_to_first_chunk"]
    assert isinstance(seconds, float)
    assert seconds > 0
