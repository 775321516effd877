"""Memory of the KV cache and of swap slots on a CPU is committed when it is first written, not at the start."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from services.worker.pages.mapped import mapped_zeros

STATUS = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATUS.read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells how much memory is resident here")
def test_only_what_is_written_is_committed() -> None:
    before = resident_bytes()
    zeros = mapped_zeros((256, 1 << 18), torch.float32)  # 256 MiB
    assert resident_bytes() - before < 32 << 20
    zeros[:64] = 1
    assert resident_bytes() - before > 32 << 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_it_is_a_tensor_of_zeros_like_any_other(dtype: torch.dtype) -> None:
    zeros = mapped_zeros((3, 5), dtype)
    assert (zeros.shape, zeros.dtype) == ((3, 5), dtype)
    assert zeros.is_contiguous()
    assert not zeros.float().any()
    zeros[1, 2] = 1.0
    assert zeros.float().sum() == 1.0
    assert mapped_zeros((0, 5), dtype).shape == (0, 5)


def test_memory_that_the_host_refuses_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> object:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="40 bytes"):
        mapped_zeros((2, 5), torch.float32)


def test_more_bytes_than_an_address_can_count_are_out_of_memory() -> None:
    with pytest.raises(MemoryError, match="cannot allocate"):
        mapped_zeros((1 << 62, 4), torch.float32)
