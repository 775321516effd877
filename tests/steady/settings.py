"""What a machine may be like while tests run."""

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
    """`options`: for pytest, before those of the user. `is_on_one_core`: pytest and all that it starts."""

    name: str
    options: tuple[str, ...] = ()
    is_on_one_core: bool = False
    num_busy_loops: int = 0

    def take_core(self) -> None:
        """To be called in the process that becomes pytest."""
        if self.is_on_one_core:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    @contextmanager
    def neighbours(self) -> Iterator[None]:
        """Processes that compute as long as the block runs, each as much as it gets."""
        loops = [subprocess.Popen([sys.executable, "-ISc", BUSY_LOOP]) for _ in range(self.num_busy_loops)]
        try:
            yield
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()


SETTINGS = (
    Setting("as in CI"),
    Setting("on one core", ("--maxprocesses=1",), is_on_one_core=True),
    Setting("beside two busy loops", num_busy_loops=2),
)
