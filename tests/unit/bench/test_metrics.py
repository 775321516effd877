"""Figures of requests whose times were made up, against what a hand works out."""

from __future__ import annotations

import pytest

from quire.bench.measurement import Measurement
from quire.bench.metrics import distribution, peak_concurrency, peak_output, percentile, summarize

# Sent, tokens in and out, when chunks came, end.
FIRST = Measurement(100.0, 10, 4, [100.5, 100.75, 101.0, 102.0], 102.0)
SECOND = Measurement(100.25, 20, 1, [101.25], 101.25)
THIRD = Measurement(102.0, 30, 3, [102.25, 102.75], 103.25)
FAILED = Measurement(100.0, 1000, 1000, [], 0.0, "HTTP status 500: no")
ALL = [FIRST, FAILED, SECOND, THIRD]


def test_counts_and_rates_are_of_what_succeeded() -> None:
    metrics = summarize(ALL, 4.0, [99.0], {})

    assert (metrics.completed, metrics.failed) == (3, 1)
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (60, 8)
    assert metrics.request_throughput == 0.75
    assert metrics.output_throughput == 2.0
    assert metrics.total_token_throughput == 17.0
    assert metrics.request_goodput is None


def test_latencies() -> None:
    metrics = summarize(ALL, 4.0, [50.0, 75.0, 100.0], {})
    ttft, tpot, itl, e2el = (metrics.latencies[name] for name in ("ttft", "tpot", "itl", "e2el"))

    # 500, 1,000 and 250 ms.
    assert ttft.mean == pytest.approx(1750 / 3)
    assert ttft.median == 500
    assert ttft.std == pytest.approx(((250 / 3) ** 2 / 3 + (1250 / 3) ** 2 / 3 + (1000 / 3) ** 2 / 3) ** 0.5)
    assert ttft.percentiles == ((50.0, 500), (75.0, 750), (100.0, 1000))
    # 1,500 ms over 3 tokens, 1,000 ms over 2; a single token has none.
    assert (tpot.mean, tpot.median, tpot.std) == (500, 500, 0)
    # 250, 250 and 1,000 ms; 500 ms.
    assert (itl.mean, itl.median) == (500, 375)
    # 2,000, 1,000 and 1,250 ms.
    assert e2el.mean == pytest.approx(4250 / 3)
    assert e2el.median == 1250


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({"ttft": 500.0}, 2),
        ({"ttft": 499.0}, 1),
        ({"tpot": 499.0}, 1),  # A single token meets any.
        ({"e2el": 1250.0}, 2),
        ({"ttft": 500.0, "e2el": 1250.0}, 1),
        ({"ttft": 0.0}, 0),
    ],
)
def test_goodput_is_of_requests_that_met_every_objective(objectives: dict[str, float], good: int) -> None:
    assert summarize(ALL, 4.0, [], objectives).request_goodput == good / 4


def test_the_peak_second_is_counted_from_the_first_start() -> None:
    """Seconds 0 to 3 have 2, 2, 4 and 0: the third's three tokens came in two chunks."""
    assert peak_output([FIRST, SECOND, THIRD]) == pytest.approx(1 + 2 * 1.5)
    assert peak_output([FIRST, SECOND]) == 2


def test_a_request_that_starts_as_another_ends_is_not_beside_it() -> None:
    assert peak_concurrency([FIRST, SECOND, THIRD]) == 2
    assert peak_concurrency([FIRST, THIRD]) == 1
    assert peak_concurrency([]) == 0


def test_where_nothing_succeeded_everything_is_zero() -> None:
    metrics = summarize([FAILED], 1.0, [99.0], {"ttft": 1.0})

    assert (metrics.completed, metrics.failed, metrics.request_goodput) == (0, 1, 0)
    assert metrics.max_output_tokens_per_s == 0
    assert all(value == distribution([], [99.0]) for value in metrics.latencies.values())
    assert distribution([], [99.0]).percentiles == ((99.0, 0),)


def test_percentiles_lie_between_the_nearest_two() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0]

    assert [percentile(values, percent) for percent in (0, 25, 90, 100)] == pytest.approx([1.0, 2.0, 12.8, 16.0])
    assert percentile([3.0], 99) == 3.0
