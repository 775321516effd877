"""How a part tells whoever started it how its start goes: JSON lines on a file descriptor (`--status-fd`).

`quire serve` opens a pipe per part and shows what comes; in a container nobody listens and nothing is written.
Readiness for load balancers is the gRPC health service's job, not this.
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
    """One line. `progress` is a fraction from 0 to 1, or None where nothing can be counted."""

    state: Literal["starting", "ready", "failed"]
    detail: str = ""
    progress: float | None = None
    # What a person may want to see once the part is ready, such as its address.
    facts: dict[str, str] = field(default_factory=dict)
    # Whether `detail` is to stay on the screen after the start has gone on.
    is_note: bool = False


class StatusReporter:
    """Writes Status lines to `fd`; with no fd it does nothing. A reader that went away is no error."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def starting(self, detail: str, progress: float | None = None) -> None:
        self._write(Status("starting", detail, progress))

    def ready(self, detail: str = "", **facts: str) -> None:
        """`detail`: what whoever started it should know beside that it is ready."""
        self._write(Status("ready", detail, facts=facts))

    def note(self, text: str) -> None:
        """During the start: something that the person who started the part should read."""
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
    """Tells whoever started a part of the warnings that it logs during its start: it may be waiting for something that
    will never come, and its log may not be shown. Each warning is told once, and MAX_NOTES of them at most."""

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
    """For as long as a part starts."""
    notes = WarningNotes(status)
    logging.getLogger().addHandler(notes)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(notes)


def parse_status(line: str | bytes) -> Status:
    """The inverse of what StatusReporter writes. Raises ValueError for anything else."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"not a status line: {line!r}")
    return Status(**fields)
