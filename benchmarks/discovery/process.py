"""A process with parts of the fleet, as the benchmark sees it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from types import TracebackType

from benchmarks.discovery.members import Change, Report
from benchmarks.router import processor_seconds
from shared.discovery import Kind
from shared.python_child import child_environment, python_command


class MemberProcess:
    """Runs `benchmarks.discovery.members` until `kill`, or until the block ends. `redis`: options that say where Redis
    is. `parts`: kind, index of the first one, and number."""

    def __init__(
        self,
        redis: Sequence[str],
        parts: Sequence[tuple[Kind, int, int]],
        *,
        has_gateway: bool = False,
        pause: float = 0.0,
    ) -> None:
        words = [word for kind, first, count in parts for word in (f"--{kind}s", f"{first}:{count}")]
        words += [*redis, "--pause", str(pause), *["--gateway"] * has_gateway]
        self._process = subprocess.Popen(
            python_command("benchmarks.discovery.members", *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # lines of the log
            env=child_environment(),
            text=True,
        )
        # Every change since the start.
        self.changes: list[Change] = []

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def report(self) -> Report:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        fields = json.loads(self._process.stdout.readline())
        report = Report(**fields | {"changes": [Change(**change) for change in fields["changes"]]})
        self.changes += report.changes
        return report

    def processor_seconds(self) -> float:
        return processor_seconds(self._process.pid)

    def kill(self) -> None:
        """Ends all parts at once, without a farewell to Redis."""
        self._process.kill()
        self._process.wait()
