"""Rotation and the write to pages, and where each token's keys and values go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, KVPages, Rotation
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps
from services.worker.ops.triton.slot_mapping import map_slots
from tests.unit.worker.ops.paging import Heads, rope_table
from tests.unit.worker.triton.random_tensors import DTYPES, assert_rounded_once, draw

EXACT = ReferenceOps(torch.device("cpu"), torch.float64)
BLOCK_SIZE = 16


def ragged_batch(device: torch.device, starts: list[int], lengths: list[int]) -> AttentionBatch:
    """Row r computes positions starts[r] to starts[r] + lengths[r] of its sequence, in pages of its own."""
    pages_per_row = 1 + max(s + n for s, n in zip(starts, lengths, strict=True)) // BLOCK_SIZE
    ids = torch.randperm(len(starts) * pages_per_row, generator=torch.Generator().manual_seed(3)) + 1
    positions = [torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    return AttentionBatch(
        positions=torch.cat(positions).to(device, torch.int32),
        query_starts=torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32),
        block_tables=ids.view(len(starts), pages_per_row).to(device, torch.int32),
    )


def expected_slots(batch: AttentionBatch) -> Tensor:
    rows = torch.repeat_interleave(batch.query_starts.diff().long())
    blocks = batch.block_tables[rows, batch.positions.long() // BLOCK_SIZE].long()
    return blocks * BLOCK_SIZE + batch.positions % BLOCK_SIZE


def projection(
    heads: Heads, tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One fused [tokens, heads, dim] with heads of nobody's before and behind, and the views q, k and v of it."""
    fused = draw(tokens, heads.query + 2 * heads.kv + 2, heads.dim, dtype=dtype, device=device)
    q, k, v = torch.split(fused[:, 1:-1], [heads.query, heads.kv, heads.kv], dim=1)
    return fused, (q, k, v)


def empty_pages(batch: AttentionBatch, heads: Heads, dtype: torch.dtype) -> KVPages:
    """NaN wherever nothing is written; page 0 is nobody's."""
    blocks = int(batch.block_tables.max()) + 1
    pages = torch.full((blocks, heads.kv, BLOCK_SIZE, heads.dim), torch.nan, device=batch.positions.device)
    return KVPages(pages.to(dtype), pages.to(dtype, copy=True))


def written(pages: Tensor, batch: AttentionBatch) -> Tensor:
    """[num_tokens, kv heads, dim]: what the batch's tokens find in their slots, float64. The rest must be NaN still."""
    slots = expected_slots(batch).cpu()
    pages = pages.cpu().float().transpose(1, 2).flatten(0, 1)  # [slots, kv heads, dim]
    others = torch.ones(len(pages), dtype=torch.bool)
    others[slots] = False
    assert pages[others].isnan().all()
    return pages[slots].double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "heads", [Heads(8, 8, 64), Heads(9, 3, 64), Heads(32, 8, 128), Heads(2, 1, 80), Heads(4, 2, 256)]
)
def test_rotates_in_place_and_writes_to_pages(device: torch.device, dtype: torch.dtype, heads: Heads) -> None:
    batch = ragged_batch(device, [0, 37, 15], [5, 1, 2])
    fused, (q, k, v) = projection(heads, 8, dtype, device)
    before, exact_q, exact_k = fused.clone(), q.double().cpu(), k.double().cpu()
    cos_sin = rope_table(64, heads.dim)
    pages = empty_pages(batch, heads, dtype)
    TritonOps(device, dtype).rope_and_write_kv(q, k, v, Rotation(cos_sin.to(device)), batch, pages)
    on_host = AttentionBatch(batch.positions.cpu(), batch.query_starts.cpu(), batch.block_tables.cpu())
    unused = empty_pages(on_host, heads, torch.float64)
    EXACT.rope_and_write_kv(exact_q, exact_k, v.double().cpu(), Rotation(cos_sin), on_host, unused)
    assert_rounded_once(q.cpu(), exact_q, absolute=1e-6)
    assert_rounded_once(k.cpu(), exact_k, absolute=1e-6)
    assert torch.equal(written(pages.keys, batch), k.double().cpu())
    assert torch.equal(written(pages.values, batch), v.double().cpu())
    assert torch.equal(fused[:, [0, -1]], before[:, [0, -1]])
    assert torch.equal(v, before[:, 1 + heads.query + heads.kv : -1])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 24, 80])
def test_part_of_a_head_is_rotated(device: torch.device, rotary_dim: int, interleaved: bool) -> None:
    """Alone, and together with writing; values are narrower than keys."""
    heads = Heads(9, 2, 80)
    batch = ragged_batch(device, [0, 37], [5, 2])
    ops, rotation = TritonOps(device, torch.float32), Rotation(rope_table(64, rotary_dim).to(device), interleaved)
    _, (q, k, v) = projection(heads, 7, torch.float32, device)
    pages = empty_pages(batch, heads, torch.float32)
    pages = replace(pages, values=pages.values[..., :48].contiguous())
    exact_q, exact_k, alone = q.double().cpu(), k.double().cpu(), q.clone()
    on_host = AttentionBatch(batch.positions.cpu(), batch.query_starts.cpu(), batch.block_tables.cpu())
    for x in (exact_q, exact_k):
        EXACT.rope(x, Rotation(rope_table(64, rotary_dim), interleaved), on_host)
    ops.rope(alone, rotation, batch)
    ops.rope_and_write_kv(q, k, v[..., :48], rotation, batch, pages)
    assert torch.equal(alone, q)
    assert_rounded_once(q.cpu(), exact_q, absolute=1e-6)
    assert_rounded_once(k.cpu(), exact_k, absolute=1e-6)
    assert torch.equal(written(pages.keys, batch), k.double().cpu())
    assert torch.equal(written(pages.values, batch), v[..., :48].double().cpu())


def test_writing_alone_changes_no_bit(device: torch.device) -> None:
    heads = Heads(1, 2, 80)
    batch = ragged_batch(device, [4], [6])
    fused, (_, k, v) = projection(heads, 6, torch.float16, device)
    before, pages = fused.clone(), empty_pages(batch, heads, torch.float16)
    TritonOps(device, torch.float16).write_kv(k, v, batch, pages)
    assert torch.equal(fused, before)
    assert torch.equal(written(pages.keys, batch), k.double().cpu())
    assert torch.equal(written(pages.values, batch), v.double().cpu())
    keys = torch.full_like(pages.keys, torch.nan)
    latent = replace(pages, keys=keys, values=keys[..., :64], is_latent=True)
    TritonOps(device, torch.float16).write_kv(k, None, batch, latent)
    assert torch.equal(latent.keys[1:].isnan(), pages.keys[1:].isnan())


def test_no_rotation_changes_no_bit(device: torch.device) -> None:
    """Cosines of 1 and sines of 0, for layers without RoPE."""
    heads = Heads(3, 2, 64)
    batch = ragged_batch(device, [4], [6])
    _, (q, k, v) = projection(heads, 6, torch.float32, device)
    before = q.clone()
    plain = torch.cat((torch.ones(16, 32), torch.zeros(16, 32)), dim=1).to(device)
    TritonOps(device, torch.float32).rope_and_write_kv(
        q, k, v, Rotation(plain), batch, empty_pages(batch, heads, torch.float32)
    )
    assert torch.equal(q, before)


def test_padding_is_harmless(device: torch.device) -> None:
    """Tokens past the last row's own, as a captured graph has them: positions and queries hold anything."""
    heads = Heads(9, 2, 64)
    batch = ragged_batch(device, [3, 20], [2, 1])
    padded = replace(
        batch,
        positions=torch.cat((batch.positions, torch.full((5,), 1 << 30, dtype=torch.int32, device=device))),
        query_starts=torch.cat((batch.query_starts, batch.query_starts[-1:].repeat(2))),
        block_tables=torch.cat((batch.block_tables, torch.full_like(batch.block_tables, 1 << 28))),
    )
    slots = map_slots(padded, BLOCK_SIZE)
    assert slots.tolist() == [*expected_slots(batch).tolist(), -1, -1, -1, -1, -1]
    fused, (q, k, v) = projection(heads, 8, torch.float32, device)
    before, pages = fused.clone(), empty_pages(batch, heads, torch.float32)
    cos_sin = rope_table(32, heads.dim).to(device)
    TritonOps(device, torch.float32).rope_and_write_kv(
        q, k, v, Rotation(cos_sin), replace(padded, slot_mapping=slots), pages
    )
    assert torch.equal(fused[3:], before[3:])
    assert not torch.equal(fused[:3], before[:3])
    assert torch.equal(written(pages.keys, batch), k[:3].double().cpu())


@pytest.mark.parametrize("lengths", [[1], [1] * 300, [0, 3, 0, 0, 200, 1, 0], [129, 127]])
def test_slot_mapping_of_ragged_rows(device: torch.device, lengths: list[int]) -> None:
    batch = ragged_batch(device, [index % 40 for index in range(len(lengths))], lengths)
    into = torch.full((len(batch.positions),), -7, device=device)
    assert map_slots(batch, BLOCK_SIZE, into) is into
    assert torch.equal(into, expected_slots(batch))


@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
def test_fp8_pages_hold_scaled_values_rounded_as_torch_rounds_and_saturate(device: torch.device, scale: float) -> None:
    heads = Heads(2, 2, 64)
    batch = ragged_batch(device, [0], [16])
    # Every float16 is finer than e4m3: ties, subnormals and both ends of the range are among the samples.
    _, (q, k, v) = projection(heads, 16, torch.float32, device)
    k.copy_(torch.logspace(-12, 10, k.numel(), 2.0, device=device).view(k.shape) * torch.sign(k))
    v.copy_(torch.arange(v.numel(), device=device).view(v.shape) / 64 - 16)
    pages = replace(empty_pages(batch, heads, torch.float8_e4m3fn), key_scale=scale, value_scale=2 * scale)
    plain = torch.cat((torch.ones(16, 32), torch.zeros(16, 32)), dim=1).to(device)
    TritonOps(device, torch.float32).rope_and_write_kv(q, k, v, Rotation(plain), batch, pages)
    for stored, x, by in ((pages.keys, k, scale), (pages.values, v, 2 * scale)):
        # By a tensor: torch divides by a number with a reciprocal and a product on a GPU, which rounds twice.
        expected = (x / torch.full_like(x, by)).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(written(stored, batch), expected.double().cpu())


def test_nan_stays_nan_in_fp8(device: torch.device) -> None:
    heads = Heads(1, 1, 64)
    batch = ragged_batch(device, [0], [1])
    _, (q, k, v) = projection(heads, 1, torch.float32, device)
    v[0, 0, 5] = torch.nan
    pages = empty_pages(batch, heads, torch.float8_e4m3fn)
    TritonOps(device, torch.float32).rope_and_write_kv(q, k, v, Rotation(rope_table(1, 64).to(device)), batch, pages)
    assert written(pages.values, batch).isnan().nonzero().tolist() == [[0, 0, 5]]


def test_what_the_kernel_would_misread_is_refused(device: torch.device) -> None:
    heads = Heads(2, 1, 64)
    batch = ragged_batch(device, [0], [3])
    _, (q, k, v) = projection(heads, 3, torch.float32, device)
    ops, pages, table = TritonOps(device, torch.float32), empty_pages(batch, heads, torch.float32), rope_table(8, 64)
    with pytest.raises(ValueError, match="cos_sin"):
        ops.rope_and_write_kv(q, k, v, Rotation(table.double().to(device)), batch, pages)
    with pytest.raises(ValueError, match="k and v must have shape"):
        ops.rope_and_write_kv(q, q, v, Rotation(table.to(device)), batch, pages)
    with pytest.raises(ValueError, match="last dimension"):
        ops.rope_and_write_kv(q, k, v.repeat(1, 1, 2)[..., ::2], Rotation(table.to(device)), batch, pages)
    turned = pages.keys.transpose(0, 2).contiguous().transpose(0, 2)
    transposed = KVPages(turned, turned)
    with pytest.raises(ValueError, match="contiguous"):
        ops.rope_and_write_kv(q, k, v, Rotation(table.to(device)), batch, transposed)
