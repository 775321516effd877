"""A scheduler's load is what it reported and what it cannot have reported yet."""

from __future__ import annotations

import pytest

from services.router.load import LoadTracker, SchedulerLoad
from services.scheduler.core import counters
from shared.metrics import catalog


def test_routers_and_schedulers_count_steps_alike() -> None:
    assert catalog.ITERATION_TOKENS.bounds == counters.STEP_TOKENS


def test_what_was_sent_counts_until_a_report_must_contain_it() -> None:
    tracker = LoadTracker()
    tracker.sent(100)
    assert tracker.outstanding_tokens == 100
    # This report may have left before the request arrived there.
    tracker.report(SchedulerLoad(outstanding_tokens=10), now=0.0)
    assert tracker.outstanding_tokens == 110
    tracker.report(SchedulerLoad(outstanding_tokens=105), now=0.1)
    assert tracker.outstanding_tokens == 105


def test_throughput_is_averaged_over_the_last_seconds() -> None:
    tracker = LoadTracker()
    assert tracker.throughput() == (0.0, 0.0)
    for tenth in range(300):
        tracker.report(SchedulerLoad(num_prompt_tokens=tenth * 10, num_generation_tokens=tenth * 2), now=tenth / 10)
    prompt, generation = tracker.throughput()
    assert prompt == pytest.approx(100)
    assert generation == pytest.approx(20)
