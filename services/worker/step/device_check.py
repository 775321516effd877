"""Checks whether the device still works, after an error that neither the plan nor a lack of memory explains.

A CUDA error such as an illegal memory access destroys the context: every later call of the process fails, and the error
appears at whichever call comes next. The process cannot repair the context. The process has to end, and a new process
has to start.
"""

from __future__ import annotations

from typing import Protocol

import torch

from services.worker.errors import DeviceLostError, PlanError


class DeviceCheck(Protocol):
    def after(self, error: Exception) -> None:
        """Checks the device after an error. Loading the model, launching a step or collecting its results has raised
        `error`. Raises DeviceLostError if the device is lost; returns if only the work that raised `error` failed. Call
        it before any later result is delivered."""
        ...


class NoDeviceCheck:
    """See `DeviceCheck`. For a CPU, which cannot be lost while the process lives."""

    def after(self, error: Exception) -> None:
        """See `DeviceCheck`."""


class CudaDeviceCheck:
    """See `DeviceCheck`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def after(self, error: Exception) -> None:
        """See `DeviceCheck`. Waits for all launched work, so that an error in that work is found too."""
        if isinstance(error, PlanError | torch.OutOfMemoryError):
            return
        try:
            torch.cuda.synchronize(self._device)
        except Exception as answer:  # type and text of the error differ between versions of torch
            raise DeviceLostError(
                f"{self._device} is lost: {_first_line(answer)}; the first error was: {_first_line(error)}"
            ) from error


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's text. The lines after it are torch's advice about debugging."""
    lines = str(error).splitlines()
    return lines[0] if lines else repr(error)
