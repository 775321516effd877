"""Tests that only a CUDA device can run. What runs in Triton's interpreter too is in tests/unit/worker/triton."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.removesuffix("conftest.py")
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip("there is no CUDA device"))


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    return torch.device("cuda", 0)
