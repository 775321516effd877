"""Children that end with their parent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.child import bound_to_parent
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import is_running, until_ended

ROOT = Path(__file__).parents[3]
PARENT = """
import subprocess, sys, time
from quire.cli.child import bound_to_parent
child = subprocess.Popen(bound_to_parent("sh", "-c", "echo $$; exec sleep 1000"), stdout=sys.stdout)
time.sleep(1000)
"""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not end children with their parent")


@linux_only
async def test_a_child_ends_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    await parent.wait()
    await until_ended([child])


@linux_only
def test_a_child_whose_parent_has_already_ended_does_not_start() -> None:
    *launcher, parent, command = bound_to_parent("true")
    with subprocess.Popen(["true"]) as ended:
        pass
    for pid, status in ((parent, 0), (str(ended.pid), 1)):
        assert subprocess.run([*launcher, pid, command], check=False).returncode == status


def test_a_child_is_as_if_it_had_been_started_directly() -> None:
    """Its signals, environment and arguments."""
    command = ("sh", "-c", 'env; echo "$1"; grep -E "SigIgn|SigBlk" /proc/self/status', "sh", "a b")
    environment = {"FRUIT": "pear", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    first, second = (
        subprocess.run(one, env=environment, capture_output=True, check=False)
        for one in (command, bound_to_parent(*command))
    )
    assert b"\nFRUIT=pear\n" in b"\n" + first.stdout
    assert b"\na b\n" in first.stdout
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)


@linux_only
def test_a_program_that_cannot_be_run_is_named() -> None:
    result = subprocess.run(bound_to_parent("/nowhere"), capture_output=True, text=True, timeout=HANG_S, check=False)
    assert result.returncode == 1
    assert result.stderr == "cannot run /nowhere: [Errno 2] No such file or directory\n"


def test_no_process_is_started_with_a_preexec_fn() -> None:
    """It would run in a fork, in which gRPC at times aborts."""
    folders = ("quire", "services", "shared", "benchmarks", "deploy", "tests")
    found = {
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "preexec_fn=" in path.read_text(encoding="utf-8")
    }
    # The process of tests.steady makes no calls.
    assert found == {ROOT / "tests" / "steady" / "__main__.py", Path(__file__)}
