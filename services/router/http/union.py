"""Fields that take values of several shapes."""

from __future__ import annotations

from typing import Any

from pydantic import Discriminator


def union(choose: Any, expected: str) -> Discriminator:
    """Picks a union's member by the value's shape, so that errors speak of that member alone."""
    return Discriminator(choose, custom_error_type="wrong_type", custom_error_message=expected)
