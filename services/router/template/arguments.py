"""Parses a tool call's arguments, for APIs that represent them as an object instead of text."""

from __future__ import annotations

from typing import Any


def parsed_arguments(text: str) -> dict[str, Any]:
    """Returns the JSON object in `text`. Parses the complete part of truncated JSON; returns {} if nothing is
    readable."""
    import pydantic_core  # imported here, because the typed API runs without it if no request uses tools

    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
