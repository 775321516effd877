"""Writes a command's results: JSON lines while it runs, and one archive at the end."""

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
    """Prints and stores every figure and result at once, so that the results survive if the command is killed.

    `write_archive` replaces the single files by one archive. Implements `supervisor.Report`.
    """

    def __init__(self, folder: Path, name: str, about: dict[str, Any]) -> None:
        """`about`: machine, commit and arguments, which the archive stores."""
        folder.mkdir(parents=True, exist_ok=True)
        # Not in `folder`, because some machines return only a few files if the command is killed.
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
        """Replaces the single files by one archive. `text`: the table that was printed at the end."""
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
    """Returns one line per case. Failed cases come last, so that they stay visible in the terminal."""
    lines = [f"{'case':70}{'status':9}{'seconds':>8}{'error':>10}  problem"]
    for result in sorted(results, key=lambda result: result.status != "ok"):
        error = "" if result.error is None else f"{result.error:.1e}"
        name = f"{result.group}: {result.case}"
        lines.append(f"{name:70}{result.status:9}{result.seconds:8.1f}{error:>10}  {result.problem}".rstrip())
    passed = sum(result.status == "ok" for result in results)
    skipped = sum(result.status == "skipped" for result in results)
    lines.append(f"{passed} of {len(results)} cases passed" + (f", {skipped} skipped" if skipped else ""))
    return "\n".join(lines)
