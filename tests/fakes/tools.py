"""Programs that some tests need and that are not Python packages."""

from __future__ import annotations

import os

import pytest


def needs(tool: object, name: str) -> pytest.MarkDecorator:
    """Marks tests that are skipped where `tool` is missing (None, False or an empty text). In CI (.ci/run), they fail
    instead, because tests that are always skipped prove nothing."""
    return pytest.mark.skipif(
        not tool and "TESTS_NEED_TOOLS" not in os.environ, reason=f"there is no {name}: make clients gets it"
    )
