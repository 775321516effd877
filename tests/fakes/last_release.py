"""Installs the last release from its wheel. The last release is the last tag before this commit. As long as there is
none, an early commit takes its place, and a later one for parts that register in Redis, which the early one cannot do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from shared.python_child import HOME

_FIRST_RELEASE = "325adecb"
_FIRST_WITH_REDIS = "35e398fa"
_KERNELS = "services/worker/ops/cpu"
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
_ALONE = ["--no-deps", "--no-index"]


class MissingReleaseError(Exception):
    """This source tree has no history with the last release."""


def install(directory: Path, *, knows_redis: bool = False) -> None:
    """Builds the wheel of the last release and installs it in a directory, without dependencies: it runs with those of
    this source tree. `knows_redis`: as long as there is no tag, the commit whose parts can register in Redis. Raises
    MissingReleaseError."""
    first = _FIRST_WITH_REDIS if knows_redis else _FIRST_RELEASE
    # A commit that is a release itself has an earlier one before it.
    release = _git("describe", "--tags", "--abbrev=0", "HEAD^") or first
    if _git("cat-file", "-e", f"{release}^{{commit}}") is None:
        raise MissingReleaseError(f"the last release, {release}, is not in the history of this source tree")
    with tempfile.TemporaryDirectory(prefix="last-release-") as temporary:
        source, wheels = Path(temporary, "source"), Path(temporary, "wheels")
        source.mkdir()
        archive = subprocess.run(["git", "archive", release], cwd=HOME, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
        if _git("diff", "--quiet", release, "HEAD", "--", _KERNELS) is not None:
            # The kernels are compiled only if they are older than their sources.
            for library in (HOME / _KERNELS).glob("*.so"):
                shutil.copy(library, source / _KERNELS)
        build = [*_PIP, "wheel", *_ALONE, "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
        subprocess.run(build, check=True)
        (wheel,) = wheels.iterdir()
        subprocess.run([*_PIP, "install", *_ALONE, "--no-compile", "--target", str(directory), str(wheel)], check=True)
    where = [sys.executable, "-P", "-c", "import shared.version; print(shared.version.__file__)"]
    found = subprocess.run(where, cwd=directory, env=environment(directory), capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(directory)


def environment(directory: Path) -> dict[str, str]:
    """Returns the environment in which `python -P -m quire` runs the release that is installed in `directory`."""
    return {**os.environ, "PYTHONPATH": str(directory)}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=HOME, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
