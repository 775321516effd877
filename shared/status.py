"""Reports the progress of a part's start to its parent process, as JSON lines on a file descriptor (`--status-fd`).

A part is a process such as a gateway, router, scheduler or worker. `quire serve` opens a pipe per part and shows what
the lines report. A part in a container gets no descriptor and writes no status lines; load balancers read its readiness
from its gRPC health service instead.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Status:
    """One status line. `progress` is a fraction from 0 to 1, or None if the progress is unknown."""

    state: Literal["starting", "ready", "failed"]
    detail: str = ""
    progress: float | None = None
    # Facts to show the user once the part is ready, such as its address.
    facts: dict[str, str] = field(default_factory=dict)
    # Whether `detail` stays on the screen while the start continues.
    is_note: bool = False


class StatusReporter:
    """Writes status lines to `fd`; does nothing if `fd` is None. After a failed write, for example because the reader
    has exited, writes no more."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def starting(self, detail: str, progress: float | None = None) -> None:
        self._write(Status("starting", detail, progress))

    def ready(self, detail: str = "", **facts: str) -> None:
        """Reports that the part is ready. `detail`: anything else that the parent process should show."""
        self._write(Status("ready", detail, facts=facts))

    def note(self, text: str) -> None:
        """Reports, during the start, a message that the user should read."""
        self._write(Status("starting", text, is_note=True))

    def failed(self, reason: str) -> None:
        self._write(Status("failed", reason))

    def _write(self, status: Status) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, (json.dumps(asdict(status)) + "\n").encode())
        except OSError:
            self._fd = None


class WarningNotes(logging.Handler):
    """Log handler that reports a part's warnings to the parent process during the start. Without it, nobody might see
    why a part waits forever, because its log might not be shown. Reports each warning once, and at most MAX_NOTES
    warnings in total."""

    MAX_NOTES = 20

    def __init__(self, status: StatusReporter) -> None:
        super().__init__(logging.WARNING)
        self._status = status
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        if text not in self._told and len(self._told) < self.MAX_NOTES:
            self._told.add(text)
            self._status.note(text)


@contextmanager
def warnings_as_notes(status: StatusReporter) -> Iterator[None]:
    """While the block runs, reports the part's warnings as notes."""
    notes = WarningNotes(status)
    logging.getLogger().addHandler(notes)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(notes)


def parse_status(line: str | bytes) -> Status:
    """Parses a line that StatusReporter wrote. Raises ValueError for any other line."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"not a status line: {line!r}")
    return Status(**fields)
