"""Draws the results of a simulation as plots, and writes a self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from quire.simulator.report import Report, Samples, table

_SIZE_INCHES = (8.0, 3.2)


def latencies(samples: Samples) -> Figure:
    """Plots the latencies as cumulative distributions: for each time, the share of requests or tokens that were served
    within that time."""
    figure, axes = _figure()
    for name, seconds in (
        ("time to first token", samples.time_to_first_token),
        ("time between tokens", samples.time_between_tokens),
        ("whole request", samples.request_latency),
    ):
        if len(seconds):
            _cumulative(axes, name, seconds)
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share served by then")
    axes.set_ylim(0, 1)
    axes.legend()
    return figure


def requests_over_time(report: Report) -> Figure:
    figure, axes = _figure()
    for name, counts in (("running", report.series.num_running), ("waiting", report.series.num_waiting)):
        axes.plot(_minutes(report, len(counts)), counts, label=name, linewidth=1)
    axes.set_xlabel("minutes")
    axes.set_ylabel("requests")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def kv_cache_over_time(report: Report) -> Figure:
    figure, axes = _figure()
    shares = 100 * np.array(report.series.kv_cache_share)
    axes.plot(_minutes(report, len(shares)), shares, linewidth=1)
    axes.set_xlabel("minutes")
    axes.set_ylabel("% of KV blocks in use")
    axes.set_ylim(0, 100)
    return figure


def write(
    folder: Path, title: str, report: Report, samples: Samples, sizes: Sequence[Report] = (), percentile: int = 99
) -> Path:
    """Writes the plots as PNG files, and the page `report.html`, which contains them. Returns the path of the page.
    `sizes`: the report of each cluster that was tried in a search for the smallest one. The page lists them with the
    given `percentile` of their latencies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, caption, figure in (
        ("latencies", "Latencies", latencies(samples)),
        ("requests", "Requests in the cluster", requests_over_time(report)),
        ("kv_cache", "KV cache", kv_cache_over_time(report)),
    ):
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        (folder / f"{name}.png").write_bytes(image.getvalue())
        pictures.append((caption, base64.b64encode(image.getvalue()).decode()))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("report.html.j2").render(
        title=title, table=table(report), pictures=pictures, sizes=sizes, percentile=percentile
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def _figure() -> tuple[Figure, Axes]:
    # pyplot is not used because it would keep every figure in memory and look for a display.
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def _cumulative(axes: Axes, name: str, seconds: NDArray[np.float64]) -> None:
    # A thousand points are enough for the plot.
    shares = np.linspace(0, 1, 1001)
    axes.plot(np.maximum(np.quantile(seconds, shares), 1e-6), shares, label=name)


def _minutes(report: Report, count: int) -> NDArray[np.float64]:
    return np.arange(count) * report.series.interval_s / 60
