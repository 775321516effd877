"""Whoever reads what `quire serve` prints may go away, and whatever ends its supervisor ends its parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.fakes.waiting import HANG_S, wait_until
from tests.unit.cli.processes import with_environment


class Stack:
    """`quire serve`, whose output is one pipe. `mark` is in the environment of all its processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = f"SERVE_TEST={directory}"
        environment = {**os.environ, "SERVE_TEST": str(directory), "XDG_RUNTIME_DIR": str(directory)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quire.cli.main", "serve", "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip

    def read_until(self, end: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == end:
                return
        raise AssertionError(f"{end!r} was not printed")

    def parts(self) -> list[int]:
        return [pid for pid in with_environment(self.mark) if pid != self.process.pid]

    def workers(self) -> list[int]:
        found = []
        for pid in self.parts():
            with suppress(FileNotFoundError):  # It has ended meanwhile.
                if b"\0worker\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


@pytest.fixture
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        stack = Stack(Path(directory))
        yield stack
        stack.process.kill()
        stack.process.wait(HANG_S)
        wait_until(lambda: with_environment(stack.mark) == [])


def test_lost_output_changes_nothing(stack: Stack) -> None:
    stack.read_until("Ctrl-C stops it.\n")
    assert stack.process.stdout is not None
    stack.process.stdout.close()
    (worker,) = stack.workers()
    os.kill(worker, signal.SIGKILL)
    # The news of it has no reader, and it is started again all the same.
    wait_until(lambda: bool(set(stack.workers()) - {worker}))
    stack.process.terminate()
    assert stack.process.wait(HANG_S) == 0
    assert (with_environment(stack.mark), os.listdir(stack.directory)) == ([], [])


def test_a_killed_supervisor_leaves_no_process_and_its_directory_goes_at_the_next_start(stack: Stack) -> None:
    stack.read_until("Ctrl-C stops it.\n")
    (left,) = os.listdir(stack.directory)
    stack.process.kill()
    stack.process.wait(HANG_S)
    wait_until(lambda: stack.parts() == [])
    assert os.listdir(stack.directory) == [left]

    stack.process = Stack(stack.directory).process
    stack.read_until("Ctrl-C stops it.\n")
    (new,) = os.listdir(stack.directory)
    assert new != left
    stack.process.terminate()
    assert stack.process.wait(HANG_S) == 0
    assert os.listdir(stack.directory) == []
