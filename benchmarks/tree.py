"""Identifies the source tree that was measured or tested."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Returns the commit of the source tree, with + if files differ from it. Empty outside a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return described.stdout.strip()
