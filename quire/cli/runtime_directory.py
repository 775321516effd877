"""Temporary directories that are removed when the process that created them ends. If SIGKILL ends the process, its
directory is removed when the next directory with the same prefix is created."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Name of the lock file in each directory. The process that created the directory holds the lock on this file. The
# kernel releases the lock when the process ends, however it ends.
_LOCK = ".quire-lock"
# Glob for the random suffix that tempfile.mkdtemp adds to a prefix.
_RANDOM = "?" * 8


@contextlib.contextmanager
def runtime_directory(prefix: str, parent: Path) -> Iterator[Path]:
    """Creates a private directory (mode 700) whose name begins with `prefix`. First removes directories with the same
    prefix that dead processes left. Raises OSError if no directory can be created."""
    remove_left(prefix, parent)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        # Lock the file before it is renamed to _LOCK. Another process's `remove_left` then finds no such file or a
        # locked one, and keeps the directory in both cases.
        with (directory / f"{_LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(directory / _LOCK)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_left(prefix: str, parent: Path) -> None:
    """Removes the directories of this user whose name begins with `prefix` and whose process has ended."""
    for directory in parent.glob(prefix + _RANDOM):
        with contextlib.suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with (directory / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
