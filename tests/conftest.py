from __future__ import annotations

import sys

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How often a greedy token was let pass that is not transformers' own."""
    models = sys.modules.get("tests.unit.worker.tiny_models")  # with transformers, which takes seconds to import
    if models is not None and models.ALL_TIES.compared:
        ties = models.ALL_TIES
        terminalreporter.write_line(f"{ties.excused} of {ties.compared} greedy tokens excused as near ties")
