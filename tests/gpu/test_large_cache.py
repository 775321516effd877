"""Pages beyond the 2^31st element of a cache, which 32 bits of offset do not reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, KVPages, Rotation
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps

SHAPE = AttentionShape(8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
PAGE = SHAPE.num_kv_heads * SHAPE.block_size * SHAPE.head_dim
NUM_BLOCKS = 2**31 // PAGE + 64
LENGTH = 200


@pytest.mark.parametrize("queries", [1, 40])
def test_keys_are_written_and_attended_to_at_the_cache_s_end(cuda: torch.device, queries: int) -> None:
    if torch.cuda.mem_get_info(cuda)[0] < 10 * 2**30:
        pytest.skip("two tensors of 4 GiB do not fit")
    ops = TritonOps(cuda, torch.bfloat16)
    ops.prepare_attention([SHAPE], 1, 256)
    keys, values = (torch.empty(NUM_BLOCKS, 2, 16, 128, dtype=torch.bfloat16, device=cuda) for _ in range(2))
    pages = KVPages(keys, values)
    first = NUM_BLOCKS - (blocks := -(-LENGTH // 16))
    host = torch.device("cpu")
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(LENGTH, 12, 128, generator=generator).bfloat16()
    cos_sin = torch.cat((torch.ones(LENGTH, 64), torch.zeros(LENGTH, 64)), dim=1)  # no rotation

    def batch(start: int, first_block: int, device: torch.device) -> AttentionBatch:
        positions = np.arange(start, LENGTH, dtype=np.int32)
        starts = np.array([0, LENGTH - start], np.int32)
        table = torch.arange(first_block, first_block + blocks, dtype=torch.int32, device=device)[None]
        work = None if device == host else ops.plan_attention(starts, positions).to(device)
        return AttentionBatch(torch.from_numpy(positions).to(device), torch.from_numpy(starts).to(device), table, work)

    on_device = qkv.to(cuda)
    ops.rope_and_write_kv(
        on_device[:, :8],
        on_device[:, 8:10],
        on_device[:, 10:],
        Rotation(cos_sin.to(cuda)),
        batch(0, first, cuda),
        pages,
    )
    torch.testing.assert_close(pages.keys[first:, :, 0].cpu(), qkv[::16, 8:10])
    start = LENGTH - queries
    out = ops.paged_attention(on_device[start:, :8], batch(start, first, cuda), pages, AttentionForm(128**-0.5))
    exact = ReferenceOps(torch.device("cpu"), torch.float64)
    small = KVPages(pages.keys[first:].cpu().double(), pages.values[first:].cpu().double())
    expected = exact.paged_attention(qkv[start:, :8].double(), batch(start, 0, host), small, AttentionForm(128**-0.5))
    error = (out.cpu().double() - expected).norm() / expected.norm()
    assert error < 1e-2, error
