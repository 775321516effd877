"""A stand-in for pynvml, the binding to NVIDIA's management library. It knows one GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

UUID = "0123-4567"
DEVICE = torch.device("cuda", 0)


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError("not supported")


def nvml(**changes: Any) -> ModuleType:
    """Returns the library. `changes`: functions in place of those that answer."""
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


def install(monkeypatch: pytest.MonkeyPatch, library: ModuleType | None) -> None:
    """Lets programs import the library, and torch know its GPU. `library`: None if the package is not installed."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))
    monkeypatch.setitem(sys.modules, "pynvml", library)
