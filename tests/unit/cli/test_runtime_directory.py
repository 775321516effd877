"""A directory goes with its owner, or when the next one comes."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.runtime_directory import remove_left, runtime_directory
from tests.fakes.waiting import HANG_S

OWNER = """
import sys
from pathlib import Path
from quire.cli.runtime_directory import runtime_directory
with runtime_directory("quire-", Path(sys.argv[1])) as directory:
    (directory / "socket").touch()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "quire-bench").mkdir()  # Nobody's: it has no owner to be gone.
    for theirs in ("quire-bench/owner", "quire-bench/.quire-lock"):  # And a person's own files.
        (tmp_path / theirs).touch()
    (tmp_path / "other").mkdir()
    return tmp_path


def owner(parent: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def test_it_is_private_and_goes_with_its_block(parent: Path) -> None:
    with runtime_directory("quire-", parent) as directory:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert names(parent) == {"quire-bench", "other"}


def test_what_a_killed_owner_left_goes_when_the_next_one_comes(parent: Path) -> None:
    with owner(parent) as killed, owner(parent) as living:
        assert len(names(parent)) == 4
        killed.kill()
        killed.wait(HANG_S)
        assert len(names(parent)) == 4
        with runtime_directory("quire-", parent):
            assert len(names(parent)) == 4, "its own, the living one's, and what is nobody's"
        remove_left("quire-", parent)
        living.communicate(timeout=HANG_S)
    assert names(parent) == {"quire-bench", "other"}
