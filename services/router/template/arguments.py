"""Parses a tool call's arguments, for APIs that represent them as an object instead of text."""

from __future__ import annotations

from typing import Any


def parsed_arguments(text: str) -> dict[str, Any]:
    """Returns the JSON object in `text`, or the complete part of a truncated object. Returns {} for any other text."""
    import pydantic_core  # imported only here, because a router that serves only the typed gRPC APIs might lack it

    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
