"""Which sampler draws on which device."""

from __future__ import annotations

from services.worker.ops import Ops
from services.worker.sampling.host_sampler import HostSampler
from services.worker.sampling.sampler import Sampler


def create_sampler(ops: Ops, max_num_seqs: int, vocab_size: int) -> Sampler:
    """Stage by stage from the host, or on the device where it has kernels for that."""
    if ops.name == "triton":
        from services.worker.sampling.device_sampler import DeviceSampler

        return DeviceSampler(ops.device, max_num_seqs, vocab_size)
    return HostSampler(ops, max_num_seqs, vocab_size)
