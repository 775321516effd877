from __future__ import annotations

import pytest

from services.router.chat import strict_tools, tool_faults
from tests.fakes.waiting import HANG_S


@pytest.fixture(autouse=True)
def _search_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names the faulty tool however slow the machine is."""
    monkeypatch.setattr(tool_faults, "_MAX_SECONDS", HANG_S)
    monkeypatch.setattr(strict_tools, "_MAX_SECONDS", HANG_S)
