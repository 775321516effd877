"""Checks whether Quire supports a GPU, and sets it up."""

from __future__ import annotations

import torch

# The lowest compute capability for which Triton compiles. torch's builds for CUDA 13 need only 7.5.
LEAST_CAPABILITY = (8, 0)


def unsupported_reason(device: torch.device) -> str | None:
    """Returns why Quire does not support this GPU, as a sentence without full stop; None if Quire supports it."""
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
    """Returns (GPU, None) with the first GPU that Quire supports. If there is none, returns (None, reason), where the
    reason says why Quire does not support the first GPU. Returns (None, None) if the machine has no GPU."""
    if not torch.cuda.is_available():
        return None, None
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    reasons = [unsupported_reason(device) for device in devices]
    supported = next((device for device, reason in zip(devices, reasons, strict=True) if reason is None), None)
    return supported, reasons[0] if supported is None and reasons else None


def select_gpu(device: torch.device) -> None:
    """Makes the GPU torch's current device, and sets the precision of matrix products.

    Partial results of a product that cuBLAS splits along the reduced dimension are added in float32. With torch's
    default settings, cuBLAS may round them to 16 bits first. TF32 is off. It is off in torch's default settings, too,
    but an environment variable in some container images turns it on."""
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
