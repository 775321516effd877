"""Finds the command that installs a missing extra. Quire is not on a package index, so the command names the source
tree or wheel of this installation."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

import quire


def install_command(extra: str) -> str:
    """Returns a shell command that installs this version of Quire with the optional dependencies `extra`."""
    source_tree = Path(quire.__file__).parents[1]
    if (source_tree / "pyproject.toml").exists():
        return f"pip install -e {shlex.quote(f'{source_tree}[{extra}]')}"
    wheel = _wheel() or "quire-VERSION.whl"
    return f"pip install {shlex.quote(f'{wheel}[{extra}]')}"


def _wheel() -> str | None:
    """Returns the path of the wheel that this Quire was installed from, as recorded by the installer (PEP 610). Returns
    None if no path is recorded or the wheel no longer exists."""
    try:
        origin = distribution("quire").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    url = urlsplit(json.loads(origin)["url"]) if origin else urlsplit("")
    path = unquote(url.path)
    return path if url.scheme == "file" and Path(path).is_file() else None
