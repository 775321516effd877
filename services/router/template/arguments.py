"""A tool call's arguments as a value, for APIs that carry objects where a model writes text."""

from __future__ import annotations

from typing import Any


def parsed_arguments(text: str) -> dict[str, Any]:
    """The object that the text is. Of one that was cut short, what can be told; empty where that is nothing."""
    import pydantic_core  # here, as the typed API runs without it where nobody calls tools

    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
