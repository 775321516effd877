"""How far a long part of the start has come."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]  # told fractions from 0 to 1
Report = Callable[[str, float | None], None]  # told what is being done, and how much of it is where that can be counted


def per_percent(report: Report, detail: str) -> Progress:
    """Reports once per percent, however often it is told."""
    reported = -1

    def progress(fraction: float) -> None:
        nonlocal reported
        if int(fraction * 100) > reported:
            reported = int(fraction * 100)
            report(detail, fraction)

    return progress
