"""Runs the kernel tests on a GPU, or in Triton's interpreter on machines without a GPU."""

from __future__ import annotations

import os

import pytest
import torch

from services.worker.startup.gpu import find_gpu, select_gpu
from tests.interpreter import complete_the_interpreter

# With TRITON_INTERPRET=1, kernels are interpreted even on a machine with a GPU.
HAS_GPU = os.environ["TRITON_INTERPRET"] != "1" and find_gpu()[0] is not None
if not HAS_GPU:
    complete_the_interpreter()


@pytest.fixture(scope="session", params=[pytest.param("cuda:0", marks=pytest.mark.gpu)] if HAS_GPU else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    device = torch.device(request.param)
    if device.type == "cuda":
        select_gpu(device)
    return device
