"""Types and a helper to report the progress of slow parts of a worker's start."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]  # takes the fraction that is done, 0 to 1
Report = Callable[[str, float | None], None]  # takes a description, and the fraction done if it can be measured


def per_percent(report: Report, detail: str) -> Progress:
    """Returns a Progress that calls `report` with `detail` and the fraction, at most once per percent."""
    reported = -1

    def progress(fraction: float) -> None:
        nonlocal reported
        if int(fraction * 100) > reported:
            reported = int(fraction * 100)
            report(detail, fraction)

    return progress
