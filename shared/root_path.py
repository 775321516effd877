"""Checks `--root-path`: the path prefix that a proxy in front of Quire does not remove from the requests that it
forwards. FastAPI and vLLM have the same option.
"""

from __future__ import annotations

import re

from shared.config import ConfigError

# Characters that no proxy percent-encodes or decodes.
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


def check_root_path(path: str) -> None:
    """Checks a prefix of HTTP paths; an empty string means no prefix. Raises ConfigError if the prefix is invalid."""
    parts = path.split("/")
    if path and (not _PATH.fullmatch(path) or "." in parts or ".." in parts):
        raise ConfigError(f"--root-path {path}: use a path such as /llm, without a slash at the end")
