"""Builds PromQL from metrics of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.metrics import Metric

WINDOW = "$__rate_interval"  # Grafana puts at least four scrape intervals here
# Of every kind of part, each of which is a job of Prometheus.
ALL_PARTS = 'job=~"gateway|router|scheduler|worker"'
# Label of what belongs together: Prometheus may watch a release in each of several namespaces. Without Kubernetes, no
# series has it, and all of them belong together.
NAMESPACE = ("namespace",)
# A release may serve several models, and one must not hide the trouble of another.
MODEL = ("namespace", "model_name")
_SUFFIXES = {"counter": "_total", "gauge": "", "histogram": ""}


def series(metric: Metric, part: str = "", at: str = "", **labels: str | None) -> str:
    """Returns a selector of a metric's series. `part`: _bucket, _count or _sum of a histogram. `at`: whose series, if
    not those of the first part that has it. Each kind of part is a job of Prometheus. `labels`: their values; None: any
    value, but not that the label is missing."""
    jobs = [one.value for one in metric.parts]
    assert not at or at in jobs
    return _selector(metric, f'job="{at or jobs[0]}"', part, labels)


def of_all_parts(metric: Metric, **labels: str) -> str:
    """Returns a selector of a metric's series of all parts that have it."""
    return _selector(metric, f'job=~"{"|".join(part.value for part in metric.parts)}"', "", labels)


def _selector(metric: Metric, job: str, part: str, labels: Mapping[str, str | None]) -> str:
    assert labels.keys() <= {*metric.labels, "le"}
    matchers = (f'{name}!=""' if value is None else f'{name}="{value}"' for name, value in labels.items())
    inside = ",".join((job, *matchers))
    return f"{metric.name}{part or _SUFFIXES[metric.kind]}{{{inside}}}"


def total(metric: Metric, by: Sequence[str] = (), **labels: str) -> str:
    """Returns the sum of a gauge's series."""
    return _sum(series(metric, **labels), by)


def per_second(metric: Metric, by: Sequence[str] = (), part: str = "", window: str = WINDOW, **labels: str) -> str:
    """Returns how fast a counter grows, or a histogram's `part`."""
    return _sum(f"rate({series(metric, part, **labels)}[{window}])", by)


def quantile(share: float, metric: Metric, by: Sequence[str] = (), window: str = WINDOW) -> str:
    """Returns the value that this share of a histogram's values do not exceed."""
    return f"histogram_quantile({share:g}, {per_second(metric, ('le', *by), '_bucket', window)})"


def mean(metric: Metric, by: Sequence[str] = ()) -> str:
    return f"{per_second(metric, by, '_sum')} / {per_second(metric, by, '_count')}"


def share_within(metric: Metric, bound: float, window: str = WINDOW) -> str:
    """Returns the share of a histogram's values that do not exceed `bound`, one of its buckets' bounds."""
    assert bound in metric.bounds
    within = per_second(metric, (), "_bucket", window, le=str(float(bound)))  # as prometheus_client writes it
    return f"{within} / {per_second(metric, (), '_count', window)}"


def _sum(expression: str, by: Sequence[str]) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"
