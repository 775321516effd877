"""Moments of a request are counted back from its end."""

from __future__ import annotations

from quire.client.results import Timings
from quire.offline.request_metrics import request_metrics


def test_moments_are_counted_back_from_the_end() -> None:
    times = request_metrics(1000.0, 4.0, Timings(0.5, 1.0, 2.5, 3.0), 7)

    assert (times.arrival_time, times.finished_time) == (1000.0, 1004.0)
    assert (times.first_scheduled_time, times.first_token_time, times.last_token_time) == (1001.5, 1002.0, 1003.5)
    assert (times.time_in_queue, times.first_token_latency, times.num_generation_tokens) == (1.5, 2.0, 7)
    assert (times.queued_ts, times.scheduled_ts) == (1000.0, 1001.5)
    assert (times.first_token_ts, times.last_token_ts) == (1002.0, 1003.5)


def test_no_moment_is_before_the_arrival() -> None:
    times = request_metrics(1000.0, 1.0, Timings(0.0, 0.5, 0.5, 1.25), 1)

    assert (times.first_scheduled_time, times.time_in_queue) == (1000.0, 0.0)


def test_a_router_that_tells_no_times_leaves_them_unknown() -> None:
    times = request_metrics(1000.0, 1.0, None, 1)

    assert (times.first_scheduled_time, times.first_token_time, times.last_token_time) == (None, None, None)
    assert (times.time_in_queue, times.first_token_latency, times.finished_time) == (None, None, 1001.0)
