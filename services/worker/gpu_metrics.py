"""Prometheus metrics of the GPU that a worker runs on, from NVIDIA's management library (NVML).

The package nvidia-ml-py is a binding to the library that comes with the driver. Without either, or where the library
refuses a question, as it does for a part of a GPU (MIG), there are no samples.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from shared.metrics import Metric, catalog, without_empty_version

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)


class GpuCollector:
    def __init__(self, device: torch.device, model: str, version: str) -> None:
        """`device`: a CUDA device. `model`, `version`: what the worker serves."""
        self._model = (model, version)
        self._handle: Any = None
        self._gpu = ""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            # CUDA's numbers depend on CUDA_VISIBLE_DEVICES, NVML's do not.
            self._gpu = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self._gpu)
        except Exception as error:
            # Whatever is wrong with a driver's library, the worker can serve.
            logger.info("no metrics of the GPU: %s", error)

    def collect(self) -> Iterator[Family]:
        if self._handle is None:
            return
        nvml, handle = self._nvml, self._handle
        questions: tuple[tuple[Metric, Callable[[], float]], ...] = (
            (catalog.GPU_UTILIZATION, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            (catalog.GPU_MEMORY_USED, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            (catalog.GPU_MEMORY_TOTAL, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            (catalog.GPU_POWER, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        )
        for metric, ask in questions:
            with contextlib.suppress(nvml.NVMLError):
                gauge = metric.gauge()
                gauge.add_metric([*self._model, self._gpu], ask())
                yield without_empty_version(gauge)
