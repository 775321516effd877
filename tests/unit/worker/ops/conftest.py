"""Fixtures: both implementations, and new tensors filled with NaN, so that an element that is never written is NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from services.worker.ops.cpu import build, library
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.reference import ReferenceOps


@pytest.fixture(scope="session")
def levels() -> list[str]:
    """The compiled instruction set levels that this processor supports, lowest first."""
    try:
        return library.supported_levels()
    except library.LibraryError:
        build.build()
        return library.supported_levels()


@pytest.fixture(scope="session", params=list(build.levels()))
def cpu(request: pytest.FixtureRequest, levels: list[str]) -> CPUOps:
    if request.param not in levels:
        pytest.skip(f"this processor does not support {request.param}")
    return CPUOps(request.param)


@pytest.fixture(scope="session")
def cpus(levels: list[str]) -> dict[str, CPUOps]:
    """The operations at every supported level. A test that compares all of them computes what it expects only once:
    in float64, that takes several times as long as a kernel."""
    return {level: CPUOps(level) for level in levels}


@pytest.fixture(scope="session")
def exact() -> ReferenceOps:
    return ReferenceOps(torch.device("cpu"), torch.float64)


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """Turns on the mode in which torch.empty fills tensors with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240607)


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
