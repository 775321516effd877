"""Tests that need a CUDA device. Tests that also run in Triton's interpreter are in tests/unit/worker/triton."""

from __future__ import annotations

import pytest
import torch

from services.worker.startup.gpu import find_gpu, select_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.removesuffix("conftest.py")
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)
            if find_gpu()[0] is None:
                item.add_marker(pytest.mark.skip("there is no GPU that Quire supports"))


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The first GPU, selected as a worker selects it."""
    device = torch.device("cuda", 0)
    select_gpu(device)
    return device
