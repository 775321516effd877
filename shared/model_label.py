"""How a version of a model is called: in requests, options, logs and errors."""

from __future__ import annotations


def model_label(name: str, version: str) -> str:
    """Returns NAME@VERSION, or NAME if the version is empty. No name on the Hugging Face hub contains an @."""
    return f"{name}@{version}" if version else name
