"""Checks whether Quire supports a GPU, and sets it up."""

from __future__ import annotations

import torch

# Triton compiles for compute capability 8.0 and higher. torch's builds for CUDA 13 do not support GPUs below 7.5.
LEAST_CAPABILITY = (8, 0)


def unsupported_reason(device: torch.device) -> str | None:
    """Returns a sentence, without full stop, that says why Quire does not support this GPU; None if it does."""
    if torch.version.hip is not None:
        return f"this torch is built for ROCm {torch.version.hip}, and Quire's GPU kernels run on NVIDIA GPUs only"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < LEAST_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; "
            f"Quire runs on GPUs of {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} and higher (Ampere and later)"
        )
    return None


def find_gpu() -> tuple[torch.device | None, str | None]:
    """Returns the first GPU that Quire supports, and None. If Quire supports no GPU here: None, and why it does not
    support the first (None if there is no GPU)."""
    if not torch.cuda.is_available():
        return None, None
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    reasons = [unsupported_reason(device) for device in devices]
    supported = next((device for device, reason in zip(devices, reasons, strict=True) if reason is None), None)
    return supported, reasons[0] if supported is None and reasons else None


def select_gpu(device: torch.device) -> None:
    """Makes the GPU torch's current device, and sets the precision of matrix products. cuBLAS then adds up the parts of
    a split product in float32: torch's default lets it round the parts to the result's 16 bits, which costs precision.
    TF32 is turned off. That is torch's default, but an environment variable in some container images turns TF32 on."""
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
