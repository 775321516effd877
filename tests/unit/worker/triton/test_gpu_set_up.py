"""What is set up on a GPU before a model is loaded, and the host memory that swapped blocks take."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from services.worker.errors import ModelError
from services.worker.gpu import select_gpu
from services.worker.page_copies import allocate_slots
from tests.simulated_gpu import SimulatedGPU
from tests.unit.worker.triton.conftest import HAS_GPU

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a real one")
CUDA = torch.device("cuda", 0)
MIB = 1 << 20


@pytest.fixture
def gpu() -> Iterator[SimulatedGPU]:
    with SimulatedGPU().running() as gpu:
        yield gpu


def test_products_in_16_bits_are_added_up_in_float32(gpu: SimulatedGPU) -> None:
    products = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction
    try:
        products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = True
        select_gpu(CUDA)
        assert not products.allow_bf16_reduced_precision_reduction
        assert not products.allow_fp16_reduced_precision_reduction
        assert not products.allow_tf32
    finally:
        products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction = before


@pytest.mark.parametrize("num_slots", [5, 9, 33])
def test_swapped_blocks_pin_what_they_take(gpu: SimulatedGPU, num_slots: int) -> None:
    page = torch.zeros((1, 2, 16, 64), dtype=torch.bfloat16, device=CUDA)
    slots = allocate_slots([page, page] * 64, num_slots)
    needed = num_slots * 128 * 2 * 16 * 64 * 2
    assert slots.shape == (num_slots, 128, 2, 16, 64)
    assert slots.numel() * slots.itemsize == needed
    assert slots.is_pinned()
    assert needed <= gpu.pinned_bytes < 1.02 * needed
    assert not slots.any()
    with gpu.rules_of_serving():  # a copy from memory that is not pinned would wait for the device
        copied = slots[num_slots - 1].to(CUDA, non_blocking=True)
    torch.cuda.synchronize()
    assert copied.shape == slots.shape[1:]
    del slots, copied
    gpu.arrive(gpu.num_copies)
    gc.collect()
    assert gpu.pinned_bytes == 0


def test_torch_s_own_pinned_memory_is_rounded_up(gpu: SimulatedGPU) -> None:
    """The reason for another way."""
    block = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
    assert block.is_pinned()
    assert gpu.pinned_bytes == 8 * MIB


def test_memory_that_cannot_be_pinned_is_a_sentence(gpu: SimulatedGPU) -> None:
    gpu.locked_bytes_limit = MIB
    page = torch.zeros((1, 2, 16, 64), device=CUDA)
    with pytest.raises(
        ModelError, match=r"^CUDA cannot pin 4194304 bytes of host memory \(error 2\): lower --swap-space"
    ):
        allocate_slots([page, page] * 16, 16)
