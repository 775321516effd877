"""Makes the worker of a real stack stop, lose its device or run out of memory at an exact point of its work.

A test that kills a part in the middle of an answer cannot choose the moment by the clock or by the received output: the
answer may be complete before the test acts. If the worker stops itself, every answer stays exactly where it is.
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
    """Returns a point: the worker stops itself when `num_sequences` sequences have at least `num_tokens` tokens
    each."""
    return {"action": "stop", "num_steps": 0, "num_sequences": num_sequences, "num_tokens": num_tokens}


def stop_after(num_steps: int) -> dict[str, Any]:
    """Returns a point: the worker stops itself `num_steps` steps after the previous point."""
    return {"action": "stop", "num_steps": num_steps, "num_sequences": 0, "num_tokens": 0}


def lose_device_after(num_steps: int) -> dict[str, Any]:
    """Returns a point: after `num_steps` steps every step fails, and the worker reports that its device is lost."""
    return {"action": "lose the device", "num_steps": num_steps, "num_sequences": 0, "num_tokens": 0}


def run_out_of_memory() -> dict[str, Any]:
    """Returns a point: from now on, the worker runs out of memory when it begins a sequence."""
    return {"action": "run out of memory", "num_steps": 0, "num_sequences": 0, "num_tokens": 0}


class WorkerScript:
    """Controls the workers of a stack. The stack must be started with `environment`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "script"

    @property
    def environment(self) -> dict[str, str]:
        path = [str(ADDED), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "QUIRE_TEST_WORKER_SCRIPT": str(self._path)}

    def give(self, worker: int, *points: dict[str, Any]) -> None:
        """Sends a script to one worker process. Returns when the worker has read it."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(points))
        draft.rename(self._path)
        os.kill(worker, signal.SIGUSR1)
        wait_until(lambda: not self._path.exists())


def wait_stopped(pid: int, asked: list[Future[Any]]) -> None:
    """Waits until the process is stopped. Fails if one of the answers in `asked` is complete before."""

    def is_stopped() -> bool:
        early = [answer for answer in asked if answer.done()]
        assert not early, f"answered before the worker stopped: {[answer.result() for answer in early]}"
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    try:
        wait_until(is_stopped)
    except BaseException:
        go_on(pid)  # so that the other answers can end
        raise


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stops the process during the block, and continues it afterwards if it is still alive."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        go_on(pid)


def go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
