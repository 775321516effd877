"""The source tree of the last release. It is the last tag. As long as there is none, it is the commit from which the
next release is upgraded, and a later commit for parts that register in Redis, which the first one does not know."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from shared.python_child import HOME

_FIRST_RELEASE = "325adecb"
_FIRST_WITH_REDIS = "35e398fa"
_KERNELS = "services/worker/ops/cpu"


class MissingReleaseError(Exception):
    """This source tree has no history with the last release."""


def unpack(tree: Path, *, knows_redis: bool = False) -> None:
    """Writes the last release to a directory, ready to run. `knows_redis`: as long as there is no
    tag, the commit whose parts can register in Redis. Raises MissingReleaseError."""
    first = _FIRST_WITH_REDIS if knows_redis else _FIRST_RELEASE
    release = _git("describe", "--tags", "--abbrev=0") or first
    if _git("cat-file", "-e", f"{release}^{{commit}}") is None:
        raise MissingReleaseError(f"the last release, {release}, is not in the history of this source tree")
    archive = subprocess.run(["git", "archive", release], cwd=HOME, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=tree, input=archive.stdout, check=True)
    if _git("diff", "--quiet", release, "HEAD", "--", _KERNELS) is None:
        build = [sys.executable, "-P", "-m", f"{_KERNELS.replace('/', '.')}.build"]
        subprocess.run(build, env=environment(tree), check=True)
    else:
        for library in (HOME / _KERNELS).glob("*.so"):
            shutil.copy(library, tree / _KERNELS)
    where = [sys.executable, "-P", "-c", "import shared.version; print(shared.version.__file__)"]
    module = subprocess.run(where, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True).stdout
    assert Path(module.strip()).is_relative_to(tree)


def environment(tree: Path) -> dict[str, str]:
    """Returns the environment in which `python -P -m quire` runs the source tree `tree`."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=HOME, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
