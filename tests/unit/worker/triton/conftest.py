"""Runs the kernel tests on a GPU, or in Triton's interpreter on machines without a GPU."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from services.worker.startup.gpu import find_gpu, select_gpu
from tests.interpreter import complete_the_interpreter

# With TRITON_INTERPRET=1, kernels are interpreted even on a machine with a GPU.
HAS_GPU = os.environ["TRITON_INTERPRET"] != "1" and find_gpu()[0] is not None
if not HAS_GPU:
    complete_the_interpreter()
_KERNEL_TESTS = (Path(__file__).parent, Path(__file__).parents[1] / "sampling")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as thorough the cases that CI need not interpret: those whose parameter values all appear in cases of the
    same test that it does interpret. On a GPU, all cases run."""
    if HAS_GPU:
        return
    cases: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and _is_interpreted(item):
            cases[item.path, item.originalname].append(item)
    for each in cases.values():
        seen: set[tuple[str, str]] = set()
        # In an order that has nothing to do with the values: the pairs of values that remain differ.
        for item in sorted(each, key=lambda item: zlib.crc32(item.name.encode())):
            values = {(name, str(value)) for name, value in item.callspec.params.items()}
            if values <= seen:
                item.add_marker("thorough")
            seen |= values


def _is_interpreted(item: pytest.Function) -> bool:
    """Whether the case launches kernels and runs in CI."""
    is_kernels = "device" in item.fixturenames or item.callspec.params.get("make_sampler") == "device"
    return item.path.parent in _KERNEL_TESTS and is_kernels and item.get_closest_marker("thorough") is None


@pytest.fixture(scope="session", params=[pytest.param("cuda:0", marks=pytest.mark.gpu)] if HAS_GPU else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    device = torch.device(request.param)
    if device.type == "cuda":
        select_gpu(device)
    return device
