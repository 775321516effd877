"""Selects the implementation of the operations for a device."""

from __future__ import annotations

import torch

from services.worker.errors import ModelError
from services.worker.ops import Ops
from services.worker.ops.reference import ReferenceOps
from services.worker.startup.gpu import unsupported_reason


def fallback_reason(device: torch.device, dtype: torch.dtype) -> str | None:
    """Returns None if there are kernels for `device` and `dtype`. Otherwise `create_ops` uses the slow reference, and
    this function returns a line for the log, which says why the reference is used and what its drawbacks are."""
    if device.type == "cuda":
        return _fallback_reason_on_cuda(dtype)
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


def create_ops(device: torch.device, dtype: torch.dtype, *, batch_invariant: bool = False) -> Ops:
    """Creates the fastest implementation for `device` and `dtype`. If there are no kernels, creates the reference, and
    `fallback_reason` says why.

    `batch_invariant` makes the GPU kernels batch-invariant, which is slower; the CPU kernels always are. Raises
    ModelError for a GPU that Quire does not support.
    """
    if device.type == "cuda" and (reason := unsupported_reason(device)) is not None:
        raise ModelError(f"{reason}; start with --device cpu")
    if fallback_reason(device, dtype) is not None:
        return ReferenceOps(device, dtype)
    if device.type == "cuda":
        from services.worker.ops.triton.ops import TritonOps

        return TritonOps(device, dtype, batch_invariant=batch_invariant)
    from services.worker.ops.cpu.ops import CPUOps

    return CPUOps()


def _fallback_reason_on_cuda(dtype: torch.dtype) -> str | None:
    try:
        from services.worker.ops.triton.ops import DTYPES
    except ImportError as error:
        return f"the GPU kernels do not load ({error}): running plain torch, slow and not batch-invariant"
    if dtype not in DTYPES:
        return f"the GPU kernels do not compute in {dtype}: running plain torch, slow and not batch-invariant"
    return None
