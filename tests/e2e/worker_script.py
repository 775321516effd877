"""Tells the worker of a real stack at which point of its work to stop, or to lose its device.

A test that kills a part in the midst of an answer cannot find that moment by the clock or by what the client has: the
answer may be over before the test acts. A worker that stops by itself holds every answer exactly where it is.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fakes.waiting import wait_until

ADDED = Path(__file__).parent / "scripted_worker"


def stop_at(num_sequences: int, num_tokens: int) -> dict[str, Any]:
    """A point: the worker stops itself when it holds so many sequences with at least so many tokens each."""
    return {"action": "stop", "num_steps": 0, "num_sequences": num_sequences, "num_tokens": num_tokens}


def stop_after(num_steps: int) -> dict[str, Any]:
    """A point: the worker stops itself so many steps after the point before."""
    return {"action": "stop", "num_steps": num_steps, "num_sequences": 0, "num_tokens": 0}


def lose_device_after(num_steps: int) -> dict[str, Any]:
    """A point: the step after so many fails, and so does each after it; the worker finds that its device is lost."""
    return {"action": "lose the device", "num_steps": num_steps, "num_sequences": 0, "num_tokens": 0}


class WorkerScript:
    """For the workers of a stack that is started with its `environment`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "script"

    @property
    def environment(self) -> dict[str, str]:
        path = [str(ADDED), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "QUIRE_TEST_WORKER_SCRIPT": str(self._path)}

    def give(self, worker: int, *points: dict[str, Any]) -> None:
        """To this process alone. Returns once it has the script."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(points))
        draft.rename(self._path)
        os.kill(worker, signal.SIGUSR1)
        wait_until(lambda: not self._path.exists())


def wait_stopped(pid: int, asked: list[Future[Any]]) -> None:
    """Until the process stands still. None of the answers `asked` for may come before: each is held by then."""

    def is_stopped() -> bool:
        early = [answer for answer in asked if answer.done()]
        assert not early, f"answered before the worker stopped: {[answer.result() for answer in early]}"
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    try:
        wait_until(is_stopped)
    except BaseException:
        go_on(pid)  # so that the answers end
        raise


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """The process is stopped within the block, and goes on after it if it still lives."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        go_on(pid)


def go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
