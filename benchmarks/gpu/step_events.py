"""Computes the time between steps from the worker's step log (`--step-log`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.figures import Figure


@dataclass(frozen=True, slots=True)
class Window:
    """A period in seconds of time.monotonic(), which all processes of a host share."""

    start: float
    end: float


def read(path: Path) -> list[dict[str, Any]]:
    """Reads the log in the order of the steps. An incomplete last line is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def idle_figures(name: str, events: Sequence[dict[str, Any]], window: Window, sequences: int) -> list[Figure]:
    """Returns the fraction of idle device time between the steps, and the length of the gaps.

    Only steps in the window with `sequences` sequences count. They may have prefill chunks in addition to decodes.
    """
    chosen = [
        event for event in events if window.start <= event["time_s"] <= window.end and event["sequences"] == sequences
    ]
    timed = [event for event in chosen if event["device_busy_us"] is not None]
    if not timed:
        why = "the worker does not time this device" if chosen else f"no step had {sequences} sequences"
        return [Figure(f"{name}: device idle between steps", None, "%", note=why)]
    gaps = sorted(event["device_idle_us"] for event in timed)
    busy = sum(event["device_busy_us"] for event in timed)
    share = 100 * sum(gaps) / (sum(gaps) + busy)
    note = f"{len(timed)} steps of {sequences} sequences, {busy / len(timed) / 1e3:.4g} ms each"
    return [
        Figure(f"{name}: device idle between steps", share, "%", note=note),
        Figure(
            f"{name}: idle before a step, median", gaps[len(gaps) // 2], "us",
            note=f"99th percentile {gaps[len(gaps) * 99 // 100]:.1f} us, the longest {gaps[-1]:.1f} us",
        ),
    ]  # fmt: skip
