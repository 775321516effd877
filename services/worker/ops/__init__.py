"""Device operations behind the models: one interface, one implementation per kind of device."""

from __future__ import annotations

import torch

from services.worker.ops.interface import Ops
from services.worker.ops.reference import ReferenceOps

__all__ = ["create_ops", "fallback_reason"]


def fallback_reason(device: torch.device, dtype: torch.dtype) -> str | None:
    """One line for the log if `create_ops` returns the slow reference, and what that costs; None if it does not."""
    if device.type != "cpu":
        return f"no kernels for {device.type}: running plain torch, which is slow and not batch-invariant"
    if dtype is not torch.float32:
        return f"the CPU kernels compute in float32, not {dtype}: running plain torch, slow and not batch-invariant"
    from services.worker.ops.cpu import library

    try:
        library.load()
    except library.LibraryError as error:
        return f"{error}; running plain torch, slow and not batch-invariant"
    return None


def create_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """The best implementation there is for `device` and `dtype`. `fallback_reason` says why it is the reference."""
    if fallback_reason(device, dtype) is not None:
        return ReferenceOps(device, dtype)
    from services.worker.ops.cpu.ops import CPUOps

    return CPUOps()
