"""Applies rotary position embedding in place and writes keys and values to their pages, in one launch.

With cosines c and sines s of a token's position (Su et al., 2021, section 3.4, in the rotate-half form), for the halves
x₁, x₂ of each head of q and k:

    x₁, x₂ = x₁ c - x₂ s, x₂ c + x₁ s                           float32, rounded once

The rotated k, and v as it is, are written to the pages [block, kv_head, slot, head_dim]. A token's entry of `slots` is
block · block_size + slot. An entry of -1 marks a token of padding: nothing is written for it, neither to pages nor to q
and k. Pages of fp8 e4m3 hold k / k_scale and v / v_scale, clamped to the range of fp8.

A program takes HEADS heads of one token. The first programs of a token take heads of q, the others heads of k and v. q,
k and v can be views into one fused projection, with any strides, provided that the last dimension is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, KVPages
from services.worker.ops.triton.fp8 import to_e4m3
from services.worker.ops.triton.slot_mapping import map_slots
from services.worker.ops.triton.variant import Variant

HEADS = 8
NUM_WARPS = 4


@triton.jit
def rope_and_write_kv_kernel(
    q,  # [num_tokens, NUM_HEADS, HEAD_DIM]
    k,  # [num_tokens, NUM_KV_HEADS, HEAD_DIM]
    v,  # [num_tokens, NUM_KV_HEADS, HEAD_DIM]
    cos_sin,  # float32 [max_positions, HEAD_DIM]
    positions,  # int32 [num_tokens]
    slots,  # int64 [num_tokens], `AttentionBatch.slot_mapping`
    keys,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM]; uint8 if FP8
    values,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    page_stride,
    k_scale,
    v_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,  # HEAD_DIM / 2, padded to a power of two
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    half: tl.constexpr = HEAD_DIM // 2
    slot = tl.load(slots + token)
    if slot >= 0:
        lanes = tl.arange(0, BLOCK_HALF)
        turn = cos_sin + tl.load(positions + token).to(tl.int64) * HEAD_DIM + lanes
        cosine = tl.load(turn, mask=lanes < half, other=0.0)[None, :]
        sine = tl.load(turn + half, mask=lanes < half, other=0.0)[None, :]
        if part < q_parts:
            heads = part * HEADS + tl.arange(0, HEADS)
            mask = (heads < NUM_HEADS)[:, None] & (lanes < half)[None, :]
            at = q + token * q_stride + heads[:, None] * q_head_stride + lanes[None, :]
            low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            high = tl.load(at + half, mask=mask, other=0.0).to(tl.float32)
            tl.store(at, (low * cosine - high * sine).to(q.dtype.element_ty), mask=mask)
            tl.store(at + half, (high * cosine + low * sine).to(q.dtype.element_ty), mask=mask)
        else:
            heads = (part - q_parts) * HEADS + tl.arange(0, HEADS)
            mask = (heads < NUM_KV_HEADS)[:, None] & (lanes < half)[None, :]
            page = (slot // BLOCK_SIZE) * page_stride + (slot % BLOCK_SIZE) * HEAD_DIM
            to = page + heads[:, None] * (BLOCK_SIZE * HEAD_DIM) + lanes[None, :]
            at = k + token * k_stride + heads[:, None] * k_head_stride + lanes[None, :]
            low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            high = tl.load(at + half, mask=mask, other=0.0).to(tl.float32)
            # Round the keys to k's type before the conversion to the page's type, as in the reference. So the values in
            # the page are converted from the same numbers that k holds.
            low_turned = (low * cosine - high * sine).to(k.dtype.element_ty)
            high_turned = (high * cosine + low * sine).to(k.dtype.element_ty)
            tl.store(at, low_turned, mask=mask)
            tl.store(at + half, high_turned, mask=mask)
            from_v = v + token * v_stride + heads[:, None] * v_head_stride + lanes[None, :]
            low_value = tl.load(from_v, mask=mask, other=0.0)
            high_value = tl.load(from_v + half, mask=mask, other=0.0)
            tl.store(keys + to, _stored(low_turned, k_scale, keys, FP8), mask=mask)
            tl.store(keys + to + half, _stored(high_turned, k_scale, keys, FP8), mask=mask)
            tl.store(values + to, _stored(low_value, v_scale, values, FP8), mask=mask)
            tl.store(values + to + half, _stored(high_value, v_scale, values, FP8), mask=mask)


@triton.jit
def _stored(x, scale, page, FP8: tl.constexpr):
    """Converts x to the type of the page."""
    if FP8:
        return to_e4m3(tl.div_rn(x.to(tl.float32), scale))
    return x.to(page.dtype.element_ty)


def rope_and_write_kv(q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, batch: AttentionBatch, pages: KVPages) -> None:
    """See `interface.Ops`. Raises ValueError for shapes and layouts that the kernel would misread."""
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = pages.keys.shape
    _check(q, k, v, cos_sin, pages)
    if not num_tokens:
        return
    slots = map_slots(batch, block_size) if batch.slot_mapping is None else batch.slot_mapping
    fp8 = pages.keys.dtype is torch.float8_e4m3fn
    keys, values = (pages.keys.view(torch.uint8), pages.values.view(torch.uint8)) if fp8 else (pages.keys, pages.values)
    rope_and_write_kv_kernel[(num_tokens, triton.cdiv(num_heads, HEADS) + triton.cdiv(num_kv_heads, HEADS))](
        q, k, v, cos_sin, batch.positions, slots, keys, values,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), keys.stride(0),
        pages.key_scale, pages.value_scale,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, FP8=fp8,
        HEADS=HEADS, BLOCK_HALF=triton.next_power_of_2(head_dim // 2), num_warps=NUM_WARPS,
    )  # fmt: skip


def _check(q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, pages: KVPages) -> None:
    _, num_kv_heads, block_size, head_dim = pages.keys.shape
    if k.shape != (q.shape[0], num_kv_heads, head_dim) or v.shape != k.shape or q.shape[2] != head_dim:
        raise ValueError(
            f"q must have heads of size {head_dim}, and k and v the shape [{q.shape[0]}, {num_kv_heads}, {head_dim}]"
        )
    if any(x.stride(2) != 1 for x in (q, k, v)):
        raise ValueError("the last dimension of q, k and v must be contiguous")
    if head_dim % 2 or cos_sin.shape[1] != head_dim or not cos_sin.is_contiguous() or cos_sin.dtype != torch.float32:
        raise ValueError(f"cos_sin must be contiguous float32 [max_positions, {head_dim}], with an even head size")
    page = (block_size * head_dim, head_dim, 1)
    if pages.keys.stride() != pages.values.stride() or pages.keys.stride()[1:] != page:
        raise ValueError(
            "each page [num_kv_heads, block_size, head_dim] must be contiguous, with equal strides in keys and values"
        )


def variants() -> Iterator[Variant]:
    for dtype, head_dim, page in (
        ("bf16", 64, "bf16"), ("bf16", 80, "bf16"), ("bf16", 128, "bf16"), ("bf16", 256, "bf16"), ("bf16", 128, "u8"),
        ("fp16", 128, "fp16"), ("fp32", 128, "fp32"),
    ):  # fmt: skip
        tensors = {**dict.fromkeys("qkv", f"*{dtype}"), **dict.fromkeys(("keys", "values"), f"*{page}")}
        tables = {"cos_sin": "*fp32", "positions": "*i32", "slots": "*i64"}
        strides = ("q_stride", "q_head_stride", "k_stride", "k_head_stride", "v_stride", "v_head_stride", "page_stride")
        numbers = {**dict.fromkeys(strides, "i32:16"), "k_scale": "fp32", "v_scale": "fp32"}
        half = triton.next_power_of_2(head_dim // 2)
        yield Variant(
            f"rope {dtype} d{head_dim}" + (" fp8 pages" if page == "u8" else ""),
            rope_and_write_kv_kernel,
            {**tensors, **tables, **numbers},
            {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_DIM": head_dim, "BLOCK_SIZE": 16, "FP8": page == "u8",
             "HEADS": HEADS, "BLOCK_HALF": half},
            NUM_WARPS,
            num_stages=3,
        )  # fmt: skip
