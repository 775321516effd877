"""Shows the start of a stack on a terminal: a live table with a row per part, then lines for later events."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from quire.cli.display import News
from shared.status import Status

MARKS = {"ready": Text("✓", "green"), "failed": Text("✗", "red")}


class LiveDisplay:
    """The live table. `names`: the parts in row order. `verbose`: print the parts' log lines above the table."""

    def __init__(self, names: Sequence[str], verbose: bool) -> None:
        self._verbose = verbose
        self._news = News()
        self._statuses = {name: Status("starting") for name in names}
        # All rows show the same spinner object, so that the spinners of all rows turn in sync.
        self._spinner = Spinner("dots")
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.settle()

    def on_status(self, name: str, status: Status) -> None:
        self._statuses[name] = status
        text = self._news.line(name, status)
        if text is not None and not self._live.is_started:
            self.note(text)

    def on_line(self, name: str, line: str) -> None:
        if self._verbose:
            self._console.print(Text.assemble((f"{name} | ", "dim"), line), soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def settle(self) -> None:
        """Called when the start is over or interrupted. Ends the live table; its last state stays on the screen."""
        self._live.stop()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for name, status in self._statuses.items():
            detail = Text(status.detail or status.state, "dim" if status.state == "ready" else "")
            bar = Text() if status.progress is None else ProgressBar(1.0, status.progress, width=24)
            table.add_row(MARKS.get(status.state, self._spinner), name, detail, bar)
        return table
