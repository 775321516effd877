"""Which GPUs Quire runs on, and how one is set up before anything is computed on it."""

from __future__ import annotations

import torch

# Triton compiles for compute capability 8.0 and higher. torch's builds for CUDA 13 do not support GPUs below 7.5.
LEAST_CAPABILITY = (8, 0)


def unsupported_reason(device: torch.device) -> str | None:
    """One sentence without its full stop that says why Quire does not run on this GPU; None if it does."""
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
    """The first GPU that Quire runs on. Without one: None, and why the first GPU there is does not count, if there is
    any."""
    if not torch.cuda.is_available():
        return None, None
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    reasons = [unsupported_reason(device) for device in devices]
    supported = next((device for device, reason in zip(devices, reasons, strict=True) if reason is None), None)
    return supported, reasons[0] if supported is None and reasons else None


def select_gpu(device: torch.device) -> None:
    """Makes it torch's current one. Lets cuBLAS add up the parts of a split product in float32 only: torch's default
    allows rounding them to the 16 bits of the result, which costs precision. Turns TF32 off, which is torch's default,
    but an environment variable of some container images turns it on."""
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
