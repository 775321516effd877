"""The events of a traced sequence's span."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, Script
from tests.fakes.spans import TRACEPARENT, keep_spans
from tests.integration.scheduler.driver import running


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return keep_spans(monkeypatch)


def events(exporter: InMemorySpanExporter) -> list[list[str]]:
    return [[event.name for event in span.events] for span in exporter.get_finished_spans()]


async def test_a_lost_worker_is_an_event(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    async with running(tmp_path, FakeWorker(script=Script(die_at_step=4))) as stack:
        router = await stack.router()
        await router.submit(1, [3, 4], 20, traceparent=TRACEPARENT)
        await router.submit(2, [3, 5], 20)
        await router.read_until_finished(1, 2)
    assert events(exporter) == [["first_token", "worker_lost"]]


async def test_a_preemption_is_an_event(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    model = FakeModel(num_blocks=12, block_size=4, max_num_seqs=4, max_num_batched_tokens=24)
    async with running(tmp_path, FakeWorker(make_model=lambda: model, max_model_len=48)) as stack:
        router = await stack.router()
        for index in range(4):
            await router.submit(index, [10 + index] * 8, 24, traceparent=TRACEPARENT)
        await router.read_until_finished(*range(4))
        num_preemptions = (await stack.stats()).load.num_preemptions
    names = [name for found in events(exporter) for name in found]
    assert num_preemptions > 0, "the pool was to be too small"
    assert names.count("preempted") == num_preemptions
    assert names.count("first_token") == 4
