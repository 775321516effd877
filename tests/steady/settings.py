"""The settings in which `make test-steady` runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BUSY_LOOP = "while True: pass"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `options`: options for pytest, before the user's. `is_on_one_core`: pytest and all processes that it
    starts share one core."""

    name: str
    options: tuple[str, ...] = ()
    is_on_one_core: bool = False
    num_busy_loops: int = 0

    def take_core(self) -> None:
        """Restricts the calling process, which then becomes pytest, to one core if the setting requires it."""
        if self.is_on_one_core:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    @contextmanager
    def neighbours(self) -> Iterator[None]:
        """Runs busy loops in other processes until the block ends."""
        loops = [subprocess.Popen([sys.executable, "-ISc", BUSY_LOOP]) for _ in range(self.num_busy_loops)]
        try:
            yield
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()


SETTINGS = (
    Setting("as in CI"),
    # With as many processes as `make test` starts on one core.
    Setting("on one core", ("--maxprocesses=2",), is_on_one_core=True),
    Setting("beside two busy loops", num_busy_loops=2),
)
