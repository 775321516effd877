"""Types and helpers to report the progress of a worker's start, and to measure its phases."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

Progress = Callable[[float], None]  # takes the fraction that is done, 0 to 1
# Takes a description, a Phase or a sentence about the present one, and the fraction done if it can be measured.
Report = Callable[[str, float | None], None]


class Phase(StrEnum):
    """What a worker does while it starts, as users see it."""

    START = "starting"
    FIND = "finding the model"
    DOWNLOAD = "downloading the model"
    LOAD = "loading weights"
    MEASURE_MEMORY = "measuring the memory of a step"
    WARM_UP = "warming up"
    RECORD = "recording graphs"
    MEASURE = "measuring a step"


def per_percent(report: Report, phase: Phase) -> Progress:
    """Returns a Progress that calls `report` with `phase` and the fraction, at most once per percent."""
    reported = -1

    def progress(fraction: float) -> None:
        nonlocal reported
        if int(fraction * 100) > reported:
            reported = int(fraction * 100)
            report(phase, fraction)

    return progress


class StartClock:
    """Passes reports on, and measures how long each phase takes. One thread at a time may use it."""

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._phase: Phase | None = None
        self._since = 0.0
        # Of the phases that have ended. A phase may come several times.
        self.seconds: dict[Phase, float] = {}

    def report(self, detail: str, fraction: float | None = None) -> None:
        if isinstance(detail, Phase) and detail is not self._phase:
            self.end()
            self._phase = detail
        self._report(detail, fraction)

    def end(self) -> None:
        """Ends the present phase."""
        now = self._clock()
        if self._phase is not None:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = None, now
