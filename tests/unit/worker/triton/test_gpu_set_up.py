"""What is set up on a GPU before a model is loaded, and the host memory that swapped blocks take."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.worker.errors import ModelError, PinningError
from services.worker.pages import host_memory
from services.worker.pages.page_copies import allocate_slots
from services.worker.startup import decoder, load
from services.worker.startup.gpu import select_gpu
from tests.simulated_gpu import SimulatedGPU
from tests.simulated_gpu.registered import MAPPED, PORTABLE
from tests.unit.worker.tiny_models import save_model
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.simulated_worker import serving, write_tokenizer

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a real one")
CUDA = torch.device("cuda", 0)
MIB = 1 << 20


@pytest.fixture
def gpu() -> Iterator[SimulatedGPU]:
    with SimulatedGPU().running() as gpu:
        yield gpu


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a checkpoint, with a tokenizer."""
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture
def imprecise() -> Iterator[None]:
    """torch may round products as it likes."""
    products = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction
    precision = torch.get_float32_matmul_precision()
    products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = True
    torch.set_float32_matmul_precision("high")
    assert products.allow_tf32
    yield
    products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction = before
    torch.set_float32_matmul_precision(precision)


def test_a_kv_cache_larger_than_the_gpu_is_refused_before_weights_are_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "open_weights", lambda *_: pytest.fail("weights are read"))
    complaint = (
        r"^--num-gpu-blocks-override takes [0-9,.]+ GiB, but cuda:0 has [0-9.]+ [GM]iB of memory available; lower it"
    )
    with pytest.raises(ModelError, match=complaint), serving(directory, num_blocks=10**9):
        pass


def check_precise() -> None:
    products = torch.backends.cuda.matmul
    assert not products.allow_bf16_reduced_precision_reduction
    assert not products.allow_fp16_reduced_precision_reduction
    assert not products.allow_tf32


@pytest.mark.usefixtures("imprecise", "gpu")
def test_products_are_added_up_in_float32() -> None:
    select_gpu(CUDA)
    check_precise()


@pytest.mark.usefixtures("imprecise")
def test_a_worker_sets_its_gpu_up_before_it_computes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first operation's creation, which is as far as the test goes."""

    def stop(*_: object, **__: object) -> None:
        raise ModelError("far enough")

    monkeypatch.setattr(load, "create_ops", stop)
    with pytest.raises(ModelError, match="far enough"), serving(directory):
        pass
    check_precise()


@pytest.mark.parametrize("num_slots", [5, 9, 33])
def test_swapped_blocks_pin_what_they_take(gpu: SimulatedGPU, num_slots: int) -> None:
    page = torch.zeros((1, 2, 16, 64), dtype=torch.bfloat16, device=CUDA)
    slots = allocate_slots([page, page] * 64, num_slots)
    needed = num_slots * 128 * 2 * 16 * 64 * 2
    assert slots.shape == (num_slots, 128 * 2 * 16 * 64)
    assert slots.numel() * slots.itemsize == needed
    assert slots.is_pinned()
    assert needed <= gpu.pinned_bytes < 1.02 * needed
    assert not slots.any()
    with gpu.rules_of_serving():  # a copy from memory that is not pinned would wait for the device
        copied = slots[num_slots - 1].to(CUDA, non_blocking=True)
    torch.cuda.synchronize()
    assert copied.shape == slots.shape[1:]
    assert [*gpu.registered.flags.values()] == [PORTABLE | MAPPED], "a kernel reads the memory by pointer"
    del slots, copied
    gpu.arrive(gpu.num_copies)
    gc.collect()
    assert gpu.pinned_bytes == 0
    assert gpu.registered.codes == [0, 0], "memory is unpinned while it is still mapped"


def test_torch_s_own_pinned_memory_is_rounded_up(gpu: SimulatedGPU) -> None:
    """The reason for another way."""
    block = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
    assert block.is_pinned()
    assert gpu.pinned_bytes == 8 * MIB


def test_memory_that_cannot_be_pinned_is_a_sentence(gpu: SimulatedGPU) -> None:
    gpu.registered.limit = MIB
    page = torch.zeros((1, 2, 16, 64), device=CUDA)
    with pytest.raises(
        PinningError, match=r"^CUDA cannot pin 4194304 bytes of host memory \(error 2\): lower --swap-space"
    ):
        allocate_slots([page, page] * 16, 16)
    assert (page + 1).sum().item() == page.numel(), "CUDA's last error is not blamed on the next kernel"


def test_a_default_that_cannot_be_pinned_leaves_no_swap_space(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_memory, "DEFAULT_GPU_BYTES", 2**19)
    gpu = SimulatedGPU()
    gpu.registered.limit = 2**18
    # In a cache of all memory there is: the pages of the attempt that fails are given back before the next.
    with serving(directory, "--enforce-eager", swap_space=None, num_blocks=None, max_num_seqs=1, gpu=gpu) as (
        _,
        runner,
    ):
        assert runner.limits.num_host_blocks == 0
        assert gpu.allocated > gpu.total_bytes / 2
    warnings = [record.message for record in caplog.records if "without swap space" in record.message]
    assert len(warnings) == 1
    assert warnings[0].startswith("CUDA cannot pin ")
    asked = serving(directory, "--enforce-eager", swap_space=2**-11, max_num_seqs=1, gpu=gpu)
    with pytest.raises(PinningError, match=r"lower --swap-space$"), asked:
        pass
