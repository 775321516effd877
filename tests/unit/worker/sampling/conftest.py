"""Fixtures for both samplers: the CPU's, and the GPU's, which runs in Triton's interpreter if there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from services.worker.sampling.host_sampler import HostSampler
from services.worker.sampling.sampler import Sampler
from services.worker.startup.create_ops import create_ops

# This module selects the interpreter, so it must be imported before any kernel.
from tests.unit.worker.triton.conftest import HAS_GPU

MakeSampler = Callable[[int, int], Sampler]


@pytest.fixture(params=["host", pytest.param("device", marks=[pytest.mark.gpu] if HAS_GPU else [])])
def make_sampler(request: pytest.FixtureRequest) -> MakeSampler:
    """Returns a function of the number of slots and the vocabulary size. Logits must be on `last_tokens.device`."""
    if request.param == "host":
        cpu = torch.device("cpu")
        return lambda slots, vocab_size: HostSampler(create_ops(cpu, torch.float32), slots, vocab_size)
    from services.worker.sampling.device_sampler import DeviceSampler

    device = torch.device("cuda:0" if HAS_GPU else "cpu")
    return lambda slots, vocab_size: DeviceSampler(device, slots, vocab_size)
