"""Identifies the source tree that was measured or tested."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Returns the commit of the source tree, with + if files differ from it. The results of other measurements do not
    count. Empty outside a repository."""
    name = _git("rev-parse", "--short=8", "HEAD").stdout.strip()
    differs = _git("diff", "--quiet", "HEAD", "--", ":(top)", ":(top,exclude)benchmarks/results").returncode == 1
    return f"{name}+" if differs else name


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    directory = Path(__file__).parent
    return subprocess.run(["git", *words], capture_output=True, text=True, cwd=directory, check=False)
