"""The prefix of every path behind a proxy that passes it on (FastAPI's and vLLM's `--root-path`)."""

from __future__ import annotations

import re

from shared.config import ConfigError

# Characters that no part between here and the client writes in another way.
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


def check_root_path(path: str) -> None:
    """Raises ConfigError. Empty: there is none."""
    parts = path.split("/")
    if path and (not _PATH.fullmatch(path) or "." in parts or ".." in parts):
        raise ConfigError(f"--root-path {path}: use a path such as /llm, without a slash at its end")
