"""Creates what runs steps on each kind of device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.worker.models import Decoder
from services.worker.ops import KVPages, Ops
from services.worker.plan import Limits
from services.worker.step.clock import DeviceStepClock, NoStepClock, StepClock
from services.worker.step.device_check import CudaDeviceCheck, DeviceCheck, NoDeviceCheck
from services.worker.step.forward_pass import ForwardPass, PlainForwardPass


def create_device_forward_pass(
    decoder: Decoder, ops: Ops, pages: Sequence[KVPages], limits: Limits, clock: StepClock
) -> ForwardPass:
    """On a GPU's kernels, from inputs that stay on the device. `clock` is told where the model begins to run. Imports
    Triton, which only a worker on a GPU needs."""
    from services.worker.step.device_forward_pass import DeviceForwardPass

    return DeviceForwardPass(decoder, ops, pages, limits, clock)


def create_plain_forward_pass(
    decoder: Decoder, ops: Ops, pages: Sequence[KVPages], limits: Limits, clock: StepClock
) -> ForwardPass:
    """As `create_device_forward_pass`, but from tensors made anew for each step, which no limit bounds."""
    return PlainForwardPass(decoder, ops, pages, clock)


def create_step_clock(device: torch.device) -> StepClock:
    """Of the device's own time, where it has events for that."""
    return DeviceStepClock() if device.type == "cuda" else NoStepClock()


def create_device_check(device: torch.device) -> DeviceCheck:
    """For a device that may be lost without its process, and one that may not."""
    return CudaDeviceCheck(device) if device.type == "cuda" else NoDeviceCheck()
