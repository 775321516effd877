"""Starts Python child processes that import nothing from the current directory.

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
    """Returns the command that runs `module` as a program, to be started with the environment that `child_environment`
    returns."""
    return (sys.executable, "-P", "-m", module, *arguments)


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Adapts `environment` for a Python child. The child finds the same Quire packages as this process. Neither the
    child nor its own Python children search the current directory."""
    paths = _without_current_directory(environment.get("PYTHONPATH", ""))
    if _is_on_path(HOME) and not _is_site_directory(HOME) and str(HOME) not in paths:
        # HOME is a source tree, which this process found through its current directory. The child finds it only through
        # an entry in PYTHONPATH. An installed package needs no entry.
        paths.insert(0, str(HOME))
    result = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    if paths:
        result["PYTHONPATH"] = os.pathsep.join(paths)
    # Has the effect of `-P` on processes that the child starts without it, such as those of multiprocessing.
    result["PYTHONSAFEPATH"] = "1"
    return result


def _without_current_directory(python_path: str) -> list[str]:
    """Returns the entries of a PYTHONPATH as absolute paths, without the entries that mean the current directory, such
    as an empty entry."""
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
    """Returns whether `path` is a directory of installed packages that this interpreter searches by default: the
    interpreter's own, the user's, or the system's if this is a virtual environment that shares the system's packages.
    In PYTHONPATH, such a directory would come before the standard library, and some of its packages would replace
    modules of the standard library (`typing`, `dataclasses`)."""
    directories = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | set(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        directories.add(site.getusersitepackages())
    return str(path) in map(os.path.realpath, directories)
