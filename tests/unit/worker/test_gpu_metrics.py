"""Metrics of a GPU, from a stand-in for NVIDIA's management library."""

from __future__ import annotations

from types import ModuleType

import pytest

from services.worker.gpu_metrics import GpuCollector
from shared.metrics import catalog
from tests.fakes.nvml import DEVICE, UUID, install, nvml, refuse


def collected(monkeypatch: pytest.MonkeyPatch, library: ModuleType | None) -> dict[str, tuple[dict[str, str], float]]:
    """Labels and value by name. `library`: None if the package is not installed."""
    install(monkeypatch, library)
    samples = [sample for family in GpuCollector(DEVICE, "chat", "2").collect() for sample in family.samples]
    return {sample.name: (sample.labels, sample.value) for sample in samples}


def test_use_memory_and_power_are_in_the_units_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    found = collected(monkeypatch, nvml())
    assert {name: value for name, (_, value) in found.items()} == {
        catalog.GPU_UTILIZATION.name: 0.75,
        catalog.GPU_MEMORY_USED.name: 3 << 30,
        catalog.GPU_MEMORY_TOTAL.name: 80 << 30,
        catalog.GPU_POWER.name: 345.6,
    }
    assert [labels for labels, _ in found.values()] == [
        {"model_name": "chat", "model_version": "2", "gpu": f"GPU-{UUID}"}
    ] * 4


def test_what_the_library_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = collected(monkeypatch, nvml(nvmlDeviceGetUtilizationRates=refuse))
    assert catalog.GPU_UTILIZATION.name not in found
    assert catalog.GPU_POWER.name in found


@pytest.mark.parametrize("library", [None, nvml(nvmlInit=refuse), nvml(nvmlDeviceGetHandleByUUID=refuse)])
def test_without_a_library_that_knows_the_gpu_there_are_no_metrics(
    library: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collected(monkeypatch, library) == {}
