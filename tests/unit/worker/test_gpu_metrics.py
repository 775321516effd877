"""Metrics of a GPU, from a stand-in for NVIDIA's management library."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from services.worker.gpu_metrics import GpuCollector
from shared.metrics import catalog

UUID = "0123-4567"
DEVICE = torch.device("cuda", 0)


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError("not supported")


def nvml(**changes: Any) -> ModuleType:
    """A library that knows one GPU."""
    module = ModuleType("pynvml")
    functions: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": {f"GPU-{UUID}": "handle"}.__getitem__,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=75, memory=20),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3 << 30, total=80 << 30),
        "nvmlDeviceGetPowerUsage": lambda _: 345_600,
    }
    for name, function in (functions | changes).items():
        setattr(module, name, function)
    return module


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))


def collected(monkeypatch: pytest.MonkeyPatch, library: ModuleType | None) -> dict[str, tuple[dict[str, str], float]]:
    """Labels and value by name. `library`: None if the package is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", library)
    samples = [sample for family in GpuCollector(DEVICE).collect() for sample in family.samples]
    return {sample.name: (sample.labels, sample.value) for sample in samples}


def test_use_memory_and_power_are_in_the_units_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    found = collected(monkeypatch, nvml())
    assert {name: value for name, (_, value) in found.items()} == {
        catalog.GPU_UTILIZATION.name: 0.75,
        catalog.GPU_MEMORY_USED.name: 3 << 30,
        catalog.GPU_MEMORY_TOTAL.name: 80 << 30,
        catalog.GPU_POWER.name: 345.6,
    }
    assert {tuple(labels.values()) for labels, _ in found.values()} == {(f"GPU-{UUID}",)}


def test_what_the_library_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = collected(monkeypatch, nvml(nvmlDeviceGetUtilizationRates=refuse))
    assert catalog.GPU_UTILIZATION.name not in found
    assert catalog.GPU_POWER.name in found


@pytest.mark.parametrize("library", [None, nvml(nvmlInit=refuse), nvml(nvmlDeviceGetHandleByUUID=refuse)])
def test_without_a_library_that_knows_the_gpu_there_are_no_metrics(
    library: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collected(monkeypatch, library) == {}
