from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    # Without a GPU, kernels run in Triton's interpreter. It has to be told before anybody imports Triton, as some of
    # transformers' modules do.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models are computed fastest on one thread, above all where the cores are busy."""
    import torch  # which most tests do without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How often a greedy token was let pass that is not transformers' own."""
    models = sys.modules.get("tests.unit.worker.tiny_models")  # with transformers, which takes seconds to import
    if models is not None and models.ALL_TIES.compared:
        ties = models.ALL_TIES
        terminalreporter.write_line(f"{ties.excused} of {ties.compared} greedy tokens excused as near ties")
