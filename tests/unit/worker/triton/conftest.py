"""Kernels run on a GPU where there is one, else in Triton's interpreter: the same tests for both."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import complete_the_interpreter

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    complete_the_interpreter()


@pytest.fixture(scope="session", params=[pytest.param("cuda:0", marks=pytest.mark.gpu)] if HAS_GPU else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
