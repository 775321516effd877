"""Python child processes that import nothing from the current directory.

`python -m` puts the current directory first on the module path, so a file json.py there would run in place of the
standard library's. Every child is started with `-P`, which leaves the current directory out.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

# The directory that holds the packages `quire`, `services` and `shared`.
HOME = Path(__file__).resolve().parents[1]


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs `module` as a program. Start it with `child_environment`."""
    return (sys.executable, "-P", "-m", module, *arguments)


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` for a Python child: the child finds the same Quire packages as this process, and neither it nor
    its own Python children search the current directory."""
    paths = _without_current_directory(environment.get("PYTHONPATH", ""))
    if _is_on_path(HOME) and not _is_site_directory(HOME) and str(HOME) not in paths:
        # A source tree that this process found by its current directory. An installed package needs no entry.
        paths.insert(0, str(HOME))
    result = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    if paths:
        result["PYTHONPATH"] = os.pathsep.join(paths)
    # What `-P` sets, for processes that the child starts without it, such as those of multiprocessing.
    result["PYTHONSAFEPATH"] = "1"
    return result


def _without_current_directory(python_path: str) -> list[str]:
    """The entries of a PYTHONPATH as absolute paths. Python takes an empty entry for the current directory."""
    here = os.getcwd()
    entries = []
    for entry in filter(None, python_path.split(os.pathsep)):
        absolute = os.path.normpath(os.path.join(here, entry))
        if os.path.isabs(entry) or absolute != here:
            entries.append(absolute)
    return entries


def _is_on_path(directory: Path) -> bool:
    return any(os.path.realpath(entry) == str(directory) for entry in sys.path)


def _is_site_directory(path: Path) -> bool:
    """Whether `path` is where this interpreter finds installed packages by itself: its own directories, those of the
    system in a virtual environment that shares them, and the user's. PYTHONPATH would put them before the standard
    library, whose modules some packages there replace (`typing`, `dataclasses`)."""
    directories = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | set(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        directories.add(site.getusersitepackages())
    return str(path) in map(os.path.realpath, directories)
