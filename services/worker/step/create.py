"""Which implementations run the steps of which model on which device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.worker.models import Decoder, Encoder
from services.worker.ops import KVPages, Ops
from services.worker.plan import Limits
from services.worker.step.clock import DeviceStepClock, NoStepClock, StepClock
from services.worker.step.device_check import CudaDeviceCheck, DeviceCheck, NoDeviceCheck
from services.worker.step.forward_pass import EncoderForwardPass, ForwardPass, PlainForwardPass


def create_forward_pass(
    model: Decoder | Encoder, ops: Ops, pages: Sequence[KVPages], limits: Limits, clock: StepClock
) -> ForwardPass:
    """On a GPU's kernels from inputs that stay on the device; elsewhere from tensors made anew for each step. `clock`
    is told where the model begins to run."""
    if isinstance(model, Encoder):
        return EncoderForwardPass(model, ops.device, clock)
    if ops.name == "triton":
        from services.worker.step.device_forward_pass import DeviceForwardPass

        return DeviceForwardPass(model, ops, pages, limits, clock)
    return PlainForwardPass(model, ops, pages, clock)


def create_step_clock(device: torch.device) -> StepClock:
    return DeviceStepClock() if device.type == "cuda" else NoStepClock()


def create_device_check(device: torch.device) -> DeviceCheck:
    return CudaDeviceCheck(device) if device.type == "cuda" else NoDeviceCheck()
