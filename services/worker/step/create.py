"""Creates the parts of a step that depend on the kind of device."""

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
    """Creates the forward pass that launches GPU kernels and keeps its inputs on the device. In each step, the forward
    pass marks on `clock` when the model begins. Triton is imported only when this function is called, because workers
    on a CPU do not need Triton."""
    from services.worker.step.device_forward_pass import DeviceForwardPass

    return DeviceForwardPass(decoder, ops, pages, limits, clock)


def create_plain_forward_pass(
    decoder: Decoder, ops: Ops, pages: Sequence[KVPages], limits: Limits, clock: StepClock
) -> ForwardPass:
    """Creates the forward pass that builds new input tensors in each step. `limits` is ignored."""
    return PlainForwardPass(decoder, ops, pages, clock)


def create_step_clock(device: torch.device) -> StepClock:
    """Creates a clock that times steps with CUDA events. For a CPU, creates a clock that measures nothing."""
    return DeviceStepClock() if device.type == "cuda" else NoStepClock()


def create_device_check(device: torch.device) -> DeviceCheck:
    """Creates the check for a lost device. A CPU cannot be lost while the process lives, so its check does nothing."""
    return CudaDeviceCheck(device) if device.type == "cuda" else NoDeviceCheck()
