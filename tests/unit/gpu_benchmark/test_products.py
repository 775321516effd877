"""The benchmark computes products as a worker does, and measures beside it what torch does by default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu import child, products
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Setting
from benchmarks.gpu.figures import Figure
from tests.simulated_gpu import SimulatedGPU
from tests.unit.worker.triton.conftest import HAS_GPU

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def as_torch_begins() -> Iterator[None]:
    before = MATMUL.allow_bf16_reduced_precision_reduction, MATMUL.allow_fp16_reduced_precision_reduction
    MATMUL.allow_bf16_reduced_precision_reduction = MATMUL.allow_fp16_reduced_precision_reduction = True
    yield
    MATMUL.allow_bf16_reduced_precision_reduction, MATMUL.allow_fp16_reduced_precision_reduction = before


def sums_in_16_bits() -> tuple[bool, bool]:
    return MATMUL.allow_bf16_reduced_precision_reduction, MATMUL.allow_fp16_reduced_precision_reduction


@pytest.mark.skipif(HAS_GPU, reason="there is a real one")
def test_a_part_of_the_benchmark_selects_the_gpu_as_a_worker_does() -> None:
    with SimulatedGPU().running():
        assert Bench(dry_run=True, simulated=True).device == torch.device("cuda", 0)
    assert sums_in_16_bits() == (False, False)


@pytest.mark.skipif(HAS_GPU, reason="there is a real one")
def test_a_child_process_selects_the_gpu_as_a_worker_does(one_thread: None) -> None:
    with child.device(Setting(dry_run=True)):
        assert sums_in_16_bits() == (False, False)


def test_floats_are_measured_with_both_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, tuple[bool, bool]]] = []

    def by_rows(_bench: Bench, name: str, _weight: object, *, batch_invariant: bool = False) -> Iterator[Figure]:
        measured.append((name, sums_in_16_bits()))
        yield Figure(name, 1.0, "us")

    monkeypatch.setattr(products, "_by_rows", by_rows)
    MATMUL.allow_bf16_reduced_precision_reduction = MATMUL.allow_fp16_reduced_precision_reduction = False
    list(products.measure(Bench(dry_run=True)))
    allowed = {name for name, setting in measured if setting == (True, True)}
    assert allowed == {name for name, _ in measured if name.endswith("sums in 16 bits")}
    assert len(allowed) == 4
    assert sums_in_16_bits() == (False, False)
