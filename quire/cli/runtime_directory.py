"""Directories that go with the process that made them: at its end, or when the next one is made after a SIGKILL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Its owner holds a lock on this file in it for as long as it lives; the kernel lets go of it however the owner ends.
_LOCK = ".quire-lock"
# What tempfile.mkdtemp adds to a prefix.
_RANDOM = "?" * 8


@contextlib.contextmanager
def runtime_directory(prefix: str, parent: Path) -> Iterator[Path]:
    """Makes a private directory (mode 700) whose name begins with `prefix`, after removing those that dead processes
    left with the same prefix. Raises OSError where none can be made."""
    remove_left(prefix, parent)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        # Locked before it has its name: whoever cleans up finds no file, or a locked one.
        with (directory / f"{_LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(directory / _LOCK)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_left(prefix: str, parent: Path) -> None:
    """Removes this user's directories of the name whose owner is gone."""
    for directory in parent.glob(prefix + _RANDOM):
        with contextlib.suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with (directory / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
