"""A progress bar for many requests, on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# Called with the number of requests finished since the last call.
Advance = Callable[[int], None]


@contextmanager
def progress_bar(what: str, total: int | None, *, is_shown: bool = True) -> Iterator[Advance]:
    """Shows a progress bar on standard error if that is a terminal or a notebook. Yields a function that advances the
    bar; any thread can call it. `total`: number of requests; None if unknown."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    is_seen = is_shown and (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, disable=not is_seen, refresh_per_second=4) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda count: progress.advance(bar, count)
