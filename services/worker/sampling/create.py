"""Creates the sampler for GPUs."""

from __future__ import annotations

from services.worker.ops import Ops
from services.worker.sampling.sampler import Sampler


def create_device_sampler(ops: Ops, max_num_seqs: int, vocab_size: int) -> Sampler:
    """Creates the sampler. Imports Triton only when called, because workers on a CPU do not need Triton."""
    from services.worker.sampling.device_sampler import DeviceSampler

    return DeviceSampler(ops.device, max_num_seqs, vocab_size)
