"""Runs groups of cases in child processes, so that a failure affects only its own case.

If a case exceeds its timeout, kills its process or leaves the CUDA context dead, the remaining cases continue in a new
child process. Cases that never begin are listed as not run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu import child
from benchmarks.gpu.cases import Group, Result, Setting
from benchmarks.gpu.figures import Figure

# Seconds for a child to import its modules and report its cases.
START_LIMIT_S = 120.0
# Imported once, by the server that the children are forked from. None of them initializes CUDA.
PRELOADED = ("torch", "triton", "services.worker.startup.engine", "benchmarks.gpu.child")
# The simulated GPU's hooks into torch import it, which takes seconds.
PRELOADED_FOR_DRY_RUNS = (*PRELOADED, "torch._dynamo")


class Report(Protocol):
    """Receives figures and results. Several threads call it, one at a time."""

    def figure(self, result: Result, figure: Figure) -> None:
        """Receives a figure of a case that is still running."""
        ...

    def ended(self, result: Result) -> None: ...


@dataclass(slots=True)
class Supervisor:
    """Runs groups of cases. `report` receives every figure and result at once."""

    setting: Setting
    logs: Path
    deadline: float  # in time.monotonic(); later cases are not run
    report: Report
    results: list[Result] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, groups: Sequence[Group], num_processes: int) -> None:
        """Runs the groups, up to `num_processes` in parallel, and returns when all have ended. After `stop`, no group
        starts, and their cases are listed as not run."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED_FOR_DRY_RUNS if self.setting.dry_run else PRELOADED))
        with ThreadPoolExecutor(max(1, num_processes)) as pool:
            for future in [pool.submit(self._run_group, context, group) for group in groups]:
                try:
                    future.result()
                except BaseException:
                    self.stop()  # the pool waits for the other groups, which now end their children
                    raise

    def stop(self) -> None:
        """Ends the children. Can be called from any thread and from a signal handler."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def add(self, result: Result) -> None:
        with self._lock:
            self.results.append(result)
            self.report.ended(result)

    def _run_group(self, context: Any, group: Group) -> None:
        progress = _Progress()
        while not progress.is_over:
            reason = self._reason_to_end()
            if reason is not None:
                self._skip_rest(group, progress, reason)
                return
            self._run_child(_Child(context, group, self.setting, progress.done, self.logs), progress)

    def _run_child(self, process: _Child, progress: _Progress) -> None:
        """Runs the remaining cases in one child process, until all have run or the process ends."""
        group, current = process.group.name, None
        num_done, has_planned = len(progress.done), False
        try:
            while True:
                message = self._next(process, current)
                if isinstance(message, str):  # the reason why no message follows
                    if current is not None:
                        current.status, current.problem = "failed", message
                        self._finish(current, progress, process)
                        progress.is_over = not progress.left
                    elif has_planned and not progress.left:
                        progress.is_over = True
                    else:
                        name = "(between two cases)" if has_planned else "(start of the child process)"
                        self._end_between_cases(
                            process, progress, Result(group, name, "failed", problem=message),
                            retry=len(progress.done) > num_done,
                        )  # fmt: skip
                    return
                match message["event"]:
                    case "planned":
                        progress.left, has_planned = list(message["cases"]), True
                    case "broken":
                        failed = Result(group, "(start)", "failed")
                        failed.problem, failed.traceback = message["problem"], message["traceback"]
                        self._finish(failed, progress, process)
                        progress.is_over = True
                        return
                    case "begin":
                        assert progress.left is not None
                        progress.left.remove(message["case"])
                        current = Result(group, message["case"], "not run")
                        process.begun_at = time.monotonic()
                    case "figure":
                        assert current is not None
                        current.figures.append(Figure(**message["figure"]))
                        with self._lock:
                            self.report.figure(current, current.figures[-1])
                    case "ok" | "failed" | "skipped" as status:
                        assert current is not None
                        current.status, current.seconds = status, message["seconds"]
                        current.error = message.get("error")
                        current.problem, current.traceback = message.get("problem", ""), message.get("traceback", "")
                        if message.get("dead"):
                            current.problem += " (the CUDA context is dead: the next cases run in a new process)"
                        self._finish(current, progress, process)
                        current = None
                        if message.get("dead"):
                            progress.is_over = not progress.left
                            return
        finally:
            process.end()

    def _end_between_cases(self, process: _Child, progress: _Progress, failed: Result, *, retry: bool) -> None:
        """Handles the end of a child between two cases. With `retry`, a new child runs the remaining cases."""
        if self._reason_to_end() is not None:
            return  # `_run_group` lists the rest
        self._finish(failed, progress, process)
        if not retry:  # a new child would end in the same way
            self._skip_rest(process.group, progress, "the child process ended before this case began")

    def _skip_rest(self, group: Group, progress: _Progress, reason: str) -> None:
        """Lists the remaining cases as not run. Their names are known only after a child has started."""
        for name in ["(all cases)"] if progress.left is None else progress.left:
            self.add(Result(group.name, name, "not run", problem=reason))
        progress.is_over = True

    def _reason_to_end(self) -> str | None:
        if self._stopped.is_set():
            return "the command was stopped"
        if time.monotonic() > self.deadline:
            return "the command reached its time limit"
        return None

    def _next(self, process: _Child, current: Result | None) -> dict[str, Any] | str:
        """Returns the child's next message, or the reason as text if no message will follow."""
        limit = process.group.limit_s
        if current is None:
            limit = max(limit, START_LIMIT_S)
        while True:
            reason = self._reason_to_end()
            if reason is not None:
                return reason
            if time.monotonic() - process.begun_at > limit:
                return f"it took longer than {limit:g} s"
            try:
                if process.messages.poll(0.1):
                    message: dict[str, Any] = json.loads(process.messages.recv_bytes())
                    return message
            except (EOFError, OSError):
                return f"the child process ended with exit code {process.exit_code()}"

    def _finish(self, result: Result, progress: _Progress, process: _Child) -> None:
        progress.done.append(result.case)
        if result.seconds == 0.0:
            result.seconds = time.monotonic() - process.begun_at
        process.begun_at = time.monotonic()
        self.add(result)


@dataclass(slots=True)
class _Progress:
    """Progress of a group over all of its child processes."""

    done: list[str] = field(default_factory=list)  # names of cases that have ended
    left: list[str] | None = None  # names of cases that have not begun; None until a child has reported them
    is_over: bool = False


class _Child:
    def __init__(self, context: Any, group: Group, setting: Setting, done: Sequence[str], logs: Path) -> None:
        self.group = group
        self.begun_at = time.monotonic()
        self.messages, theirs = context.Pipe(duplex=False)
        log = logs / f"{group.name.replace('/', '-').replace(' ', '-')}.log"
        arguments: tuple[Connection, Any, Any, Any, Any] = (theirs, group, setting, tuple(done), log)
        self._process = context.Process(target=child.run, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def exit_code(self) -> int | None:
        self._process.join(10)
        code: int | None = self._process.exitcode
        return code

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.messages.close()


def num_cores() -> int:
    return len(os.sched_getaffinity(0))
