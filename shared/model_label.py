"""The label of a model's version in requests, options, logs and errors."""

from __future__ import annotations


def model_label(name: str, version: str) -> str:
    """Returns NAME@VERSION, or NAME if the version is empty."""
    return f"{name}@{version}" if version else name
