"""Shows the start of a stack and later events as plain lines, for logs and pipes."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from shared.status import Status

# Progress is shown in steps of this fraction.
PROGRESS_STEP = 0.25


class News:
    """Selects the statuses to print: each status that differs from the part's last status. Failures are left out: a
    failure stops the stack or restarts the part, and the supervisor reports both."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def line(self, name: str, status: Status) -> str | None:
        text = f"{name}: {status.detail or status.state}"
        if status.progress is not None:
            text += f" {status.progress // PROGRESS_STEP * PROGRESS_STEP:.0%}"
        if status.state == "failed" or self._last.get(name) == text:
            return None
        self._last[name] = text
        return text


class PlainDisplay:
    """Prints a line for each new status. `verbose`: print the parts' log lines as well, prefixed with the part's
    name."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._news = News()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    def on_status(self, name: str, status: Status) -> None:
        text = self._news.line(name, status)
        if text is not None:
            self.note(text)

    def on_line(self, name: str, line: str) -> None:
        if self._verbose:
            self.note(f"{name} | {line}")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def settle(self) -> None:
        """Called when the start is over or interrupted. Does nothing, because each line was printed at once."""
