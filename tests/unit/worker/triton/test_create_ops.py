"""Which operations a GPU gets. No GPU is needed for that: nothing is launched."""

from __future__ import annotations

import sys

import pytest
import torch

from services.worker.errors import ModelError
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps
from services.worker.startup.create_ops import create_ops, fallback_reason
from tests.simulated_gpu import pretend_properties

CUDA = torch.device("cuda", 0)


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    pretend_properties(monkeypatch, capability, name="Tesla T4")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_gpu_gets_the_kernels(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, batch_invariant: bool) -> None:
    pretend(monkeypatch, (8, 0))
    ops = create_ops(CUDA, dtype, batch_invariant=batch_invariant)
    assert isinstance(ops, TritonOps)
    assert (ops.device, ops.dtype, ops.batch_invariant) == (CUDA, dtype, batch_invariant)
    assert fallback_reason(CUDA, dtype) is None


def test_a_gpu_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (7, 5))
    with pytest.raises(
        ModelError,
        match=r"^Tesla T4 has compute capability 7\.5; Quire runs on GPUs of 8\.0 .*; start with --device cpu$",
    ):
        create_ops(CUDA, torch.float16)


def test_a_build_of_torch_for_rocm_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (9, 4))
    monkeypatch.setattr(torch.version, "hip", "7.1.2")
    with pytest.raises(ModelError, match=r"^this torch is built for ROCm 7\.1\.2, and .* NVIDIA GPUs only; start with"):
        create_ops(CUDA, torch.bfloat16)


def test_without_triton_a_gpu_runs_the_reference_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (9, 0))
    monkeypatch.setitem(sys.modules, "services.worker.ops.triton.ops", None)
    assert isinstance(create_ops(CUDA, torch.bfloat16), ReferenceOps)
    assert "do not load" in (fallback_reason(CUDA, torch.bfloat16) or "")


def test_a_type_without_kernels_runs_the_reference_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (9, 0))
    assert isinstance(create_ops(CUDA, torch.float64), ReferenceOps)
    assert "float64" in (fallback_reason(CUDA, torch.float64) or "")
    with pytest.raises(ValueError, match="float64"):
        TritonOps(CUDA, torch.float64)
