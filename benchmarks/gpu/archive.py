"""What a command leaves in its output directory: JSON lines while it runs, one archive when it ends."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.gpu.cases import Result
from benchmarks.gpu.figures import Figure, line


class Record:
    """Tells the terminal and the disk of every figure and result at once, so that a killed command leaves what it
    measured. `write_archive` replaces the loose files by one archive. See `supervisor.Report`."""

    def __init__(self, folder: Path, name: str, about: dict[str, Any]) -> None:
        """`about`: the machine, the commit and the arguments."""
        folder.mkdir(parents=True, exist_ok=True)
        # Not in `folder`: only a few files come back from some machines if the command is killed.
        self.logs = Path(tempfile.mkdtemp(prefix=f"quire-{name}-"))
        self.path = folder / f"{name}.tar.gz"
        self._about = about
        self._start = time.monotonic()
        self._lines = folder / f"{name}.jsonl"
        self._file = self._lines.open("w", encoding="utf-8")
        self._write({"about": about})

    def figure(self, result: Result, figure: Figure) -> None:
        print(line(figure), flush=True)
        self._write({"group": result.group, "case": result.case, "figure": figure.record()})

    def ended(self, result: Result) -> None:
        if result.status != "ok":
            print(f"{result.status.upper()}: {result.group}: {result.case}: {result.problem}", flush=True)
        self._write(result.record())

    def stage(self, name: str, seconds: float) -> None:
        print(f"-- {name}: {seconds:.1f} s", flush=True)
        self._write({"stage": name, "seconds": seconds})

    def write_archive(self, results: Sequence[Result], text: str) -> None:
        """`text`: what was shown at the end."""
        self._file.close()
        tracebacks = "\n".join(
            f"== {result.group}: {result.case}\n{result.problem}\n{result.traceback}"
            for result in results
            if result.status == "failed"
        )
        summary = {
            "about": self._about,
            "seconds": time.monotonic() - self._start,
            "results": [result.record() for result in results],
        }
        unfinished = self.path.with_suffix(".unfinished")
        with tarfile.open(unfinished, "w:gz") as archive:
            for name, content in (
                ("results.json", json.dumps(summary, indent=1)),
                ("table.txt", text + "\n"),
                ("tracebacks.txt", tracebacks),
            ):
                _add(archive, name, content.encode())
            archive.add(self._lines, "events.jsonl")
            for log in sorted(self.logs.iterdir()):
                archive.add(log, f"logs/{log.name}")
        unfinished.replace(self.path)
        shutil.rmtree(self.logs)
        self._lines.unlink()

    def _write(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(content), int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def table(results: Sequence[Result]) -> str:
    """One line per case: what failed comes last, where a terminal shows it."""
    lines = [f"{'case':70}{'status':9}{'seconds':>8}{'error':>10}  problem"]
    for result in sorted(results, key=lambda result: result.status != "ok"):
        error = "" if result.error is None else f"{result.error:.1e}"
        name = f"{result.group}: {result.case}"
        lines.append(f"{name:70}{result.status:9}{result.seconds:8.1f}{error:>10}  {result.problem}".rstrip())
    passed = sum(result.status == "ok" for result in results)
    skipped = sum(result.status == "skipped" for result in results)
    lines.append(f"{passed} of {len(results)} cases passed" + (f", {skipped} skipped" if skipped else ""))
    return "\n".join(lines)
