"""Whether the device still answers, asked after an error that neither the plan nor memory explains.

A CUDA error such as an illegal memory access destroys the context: every later call of the process fails, and the error
appears at whichever call comes next. A process cannot mend that, so it has to end and another one has to start.
"""

from __future__ import annotations

from typing import Protocol

import torch

from services.worker.errors import DeviceLostError, PlanError


class DeviceCheck(Protocol):
    def after(self, error: Exception) -> None:
        """To be called with what a launch or a collection raised, before anything that was computed since is delivered.
        Raises DeviceLostError if the device is lost; returns if the error concerns the work alone."""
        ...


class NoDeviceCheck:
    """For a CPU, which is not lost without the process."""

    def after(self, error: Exception) -> None:
        """See `DeviceCheck`."""


class CudaDeviceCheck:
    """See `DeviceCheck`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def after(self, error: Exception) -> None:
        """See `DeviceCheck`. Waits for all work that is under way, as its errors count too."""
        if isinstance(error, PlanError | torch.OutOfMemoryError):
            return
        try:
            torch.cuda.synchronize(self._device)
        except Exception as answer:  # its type and text differ from one version of torch to another
            raise DeviceLostError(
                f"{self._device} is lost: {_first_line(answer)}; the error showed first as: {_first_line(error)}"
            ) from error


def _first_line(error: Exception) -> str:
    """torch adds lines of advice about debugging."""
    lines = str(error).splitlines()
    return lines[0] if lines else repr(error)
