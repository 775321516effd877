"""Kernels run on a GPU where there is one, else in Triton's interpreter: the same tests for both."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import let_the_interpreter_count

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    let_the_interpreter_count()


@pytest.fixture(scope="session", params=[pytest.param("cuda", marks=pytest.mark.gpu)] if HAS_GPU else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
