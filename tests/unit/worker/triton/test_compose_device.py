"""What goes with which operations."""

from __future__ import annotations

import torch

from services.worker.ops.interface import KVPages, Ops
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps
from services.worker.pages.device_page_copies import DevicePageCopies
from services.worker.pages.page_copies import PlainPageCopies
from services.worker.sampling.device_sampler import DeviceSampler
from services.worker.sampling.host_sampler import HostSampler
from services.worker.startup.device import compose_device


def collaborators(ops: Ops) -> tuple[type, type, bool]:
    device = compose_device(ops)
    pages = [KVPages(torch.zeros(2, 1, 16, 8, device=ops.device), torch.zeros(2, 1, 16, 8, device=ops.device))]
    sampler, copies = device.create_sampler(ops, 2, 30), device.create_page_copies(pages, 0)
    return type(sampler), type(copies), device.records_graphs


def test_kernels_draw_and_copy_on_the_device(device: torch.device) -> None:
    assert collaborators(TritonOps(device, torch.float32)) == (DeviceSampler, DevicePageCopies, True)


def test_plain_operations_go_with_plain_tensors(device: torch.device) -> None:
    assert collaborators(ReferenceOps(device, torch.float32)) == (HostSampler, PlainPageCopies, False)
