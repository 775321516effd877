"""Assembles the parts of a worker that depend on its device. Only this module chooses between the parts for Triton
kernels and those for plain torch tensors.
"""

from __future__ import annotations

from services.worker.ops import Ops
from services.worker.pages import PlainPageCopies, create_device_page_copies
from services.worker.sampling import HostSampler, create_device_sampler
from services.worker.step import (
    Device,
    create_device_check,
    create_device_forward_pass,
    create_plain_forward_pass,
    create_step_clock,
)


def compose_device(ops: Ops) -> Device:
    """Combines `ops` with the matching sampler, forward pass, clock, page copies and check for a lost device. With
    Triton kernels, sampler and forward pass keep their data on the device; otherwise they build plain torch tensors in
    each step."""
    has_kernels = ops.name == "triton"
    return Device(
        ops,
        check=create_device_check(ops.device),
        create_clock=lambda: create_step_clock(ops.device),
        create_forward_pass=create_device_forward_pass if has_kernels else create_plain_forward_pass,
        create_sampler=create_device_sampler if has_kernels else HostSampler,
        create_page_copies=create_device_page_copies if has_kernels else PlainPageCopies,
        records_graphs=has_kernels,
        is_synchronous=ops.device.type == "cpu",
    )
