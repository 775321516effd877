"""Applies rotary position embedding in place and writes keys and values to their pages, in one launch.

With cosines c and sines s of a token's position (Su et al., 2021, section 3.4), for each pair x₁, x₂ among the first
ROTARY_DIM elements of each head of q and k:

    x₁, x₂ = x₁ c - x₂ s, x₂ c + x₁ s                           float32, rounded once

The pairs are elements i and i + ROTARY_DIM / 2, or neighbours if the rotation is interleaved. Rotated k, and v, are
written to slot i of page b, [block, kv_head, slot, dim], where b · block_size + i is the token's slot. Pages of fp8
e4m3 hold k / k_scale and v / v_scale, saturated. A token with slot -1 is padding: nothing is written for it, neither to
pages nor to q and k.

A program takes HEADS heads of one token. The first programs of a token take heads of q, the others heads of k and v. q,
k and v can be views into one fused projection, with any strides, provided that the last dimension is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, KVPages, Rotation
from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.fp8 import to_e4m3
from services.worker.ops.triton.slot_mapping import map_slots
from services.worker.ops.triton.variant import Variant

HEADS = 8
NUM_WARPS = 4


@triton.jit
def rope_and_write_kv_kernel(
    q,  # [num_tokens, NUM_HEADS, >= ROTARY_DIM]
    k,  # [num_tokens, NUM_KV_HEADS, KEY_DIM]
    v,  # [num_tokens, NUM_KV_HEADS, VALUE_DIM]
    cos_sin,  # float32 [max_positions, ROTARY_DIM]
    positions,  # int32 [num_tokens]
    slots,  # int64 [num_tokens]
    keys,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, KEY_DIM], or its bytes if FP8
    values,  # [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, VALUE_DIM], as keys
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    key_page_stride,
    value_page_stride,
    k_scale,
    v_scale,
    NUM_HEADS: tl.constexpr,  # 0: q is not rotated
    NUM_KV_HEADS: tl.constexpr,  # 0: nothing is written
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,  # 0: only keys are written
    ROTARY_DIM: tl.constexpr,  # 0: nothing is rotated
    INTERLEAVED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,  # ROTARY_DIM / 2, padded to a power of two
    BLOCK_REST: tl.constexpr,  # KEY_DIM - ROTARY_DIM, padded likewise
    BLOCK_VALUE: tl.constexpr,  # VALUE_DIM, padded likewise
    PDL: tl.constexpr,
):
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    half: tl.constexpr = ROTARY_DIM // 2
    slot = tl.load(slots + token)
    if slot >= 0:
        pairs = tl.arange(0, BLOCK_PAIRS)
        first = pairs
        second = pairs + half
        if INTERLEAVED:
            first = 2 * pairs
            second = 2 * pairs + 1
        if ROTARY_DIM > 0:
            turn = cos_sin + tl.load(positions + token).to(tl.int64) * ROTARY_DIM + pairs
            cosine = tl.load(turn, mask=pairs < half, other=0.0)[None, :]
            sine = tl.load(turn + half, mask=pairs < half, other=0.0)[None, :]
        if part < q_parts:
            if ROTARY_DIM > 0:
                heads = part * HEADS + tl.arange(0, HEADS)
                q_mask = (heads < NUM_HEADS)[:, None] & (pairs < half)[None, :]
                at = q + token * q_stride + heads[:, None] * q_head_stride
                x1 = tl.load(at + first[None, :], mask=q_mask, other=0.0).to(tl.float32)
                x2 = tl.load(at + second[None, :], mask=q_mask, other=0.0).to(tl.float32)
                tl.store(at + first[None, :], (x1 * cosine - x2 * sine).to(q.dtype.element_ty), mask=q_mask)
                tl.store(at + second[None, :], (x2 * cosine + x1 * sine).to(q.dtype.element_ty), mask=q_mask)
        else:
            heads = (part - q_parts) * HEADS + tl.arange(0, HEADS)
            held = (heads < NUM_KV_HEADS)[:, None]
            at = k + token * k_stride + heads[:, None] * k_head_stride
            slots_of_heads = heads[:, None] * BLOCK_SIZE + slot % BLOCK_SIZE
            to = keys + (slot // BLOCK_SIZE) * key_page_stride + slots_of_heads * KEY_DIM
            if ROTARY_DIM > 0:
                pair_mask = held & (pairs < half)[None, :]
                x1 = tl.load(at + first[None, :], mask=pair_mask, other=0.0).to(tl.float32)
                x2 = tl.load(at + second[None, :], mask=pair_mask, other=0.0).to(tl.float32)
                # Rounded to k's type first, also if the page rounds again, so that pages and q's product agree.
                turned_x1 = (x1 * cosine - x2 * sine).to(k.dtype.element_ty)
                turned_x2 = (x2 * cosine + x1 * sine).to(k.dtype.element_ty)
                tl.store(at + first[None, :], turned_x1, mask=pair_mask)
                tl.store(at + second[None, :], turned_x2, mask=pair_mask)
                tl.store(to + first[None, :], _stored(turned_x1, k_scale, keys, FP8), mask=pair_mask)
                tl.store(to + second[None, :], _stored(turned_x2, k_scale, keys, FP8), mask=pair_mask)
            if KEY_DIM > ROTARY_DIM:
                rest = ROTARY_DIM + tl.arange(0, BLOCK_REST)[None, :]
                rest_mask = held & (rest < KEY_DIM)
                rest_of_k = tl.load(at + rest, mask=rest_mask, other=0.0)
                tl.store(to + rest, _stored(rest_of_k, k_scale, keys, FP8), mask=rest_mask)
            if VALUE_DIM > 0:
                dims = tl.arange(0, BLOCK_VALUE)[None, :]
                value_mask = held & (dims < VALUE_DIM)
                value = tl.load(
                    v + token * v_stride + heads[:, None] * v_head_stride + dims, mask=value_mask, other=0.0
                )
                value_to = values + (slot // BLOCK_SIZE) * value_page_stride + slots_of_heads * VALUE_DIM
                tl.store(value_to + dims, _stored(value, v_scale, values, FP8), mask=value_mask)


@triton.jit
def _stored(x, scale, page, FP8: tl.constexpr):
    """Converts x to the type of the page."""
    if FP8:
        return to_e4m3(tl.div_rn(x.to(tl.float32), scale))
    return x.to(page.dtype.element_ty)


def rope(x: Tensor, rotation: Rotation, batch: AttentionBatch) -> None:
    """See `interface.Ops`. Raises ValueError for shapes and layouts that the kernel would misread."""
    _check_heads(x, rotation)
    slots = batch.slot_mapping
    if slots is None:  # only the sign is read
        slots = torch.zeros(len(batch.positions), dtype=torch.int64, device=x.device)
    _launch(x, None, None, rotation, batch, slots, None)


def write_kv(k: Tensor, v: Tensor | None, batch: AttentionBatch, pages: KVPages) -> None:
    """See `interface.Ops`. Raises ValueError for shapes and layouts that the kernel would misread."""
    _check_kv(k, v, pages)
    _launch(None, k, v, None, batch, _slots(batch, pages), pages)


def rope_and_write_kv(
    q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, batch: AttentionBatch, pages: KVPages
) -> None:
    """See `interface.Ops`. Raises ValueError for shapes and layouts that the kernel would misread."""
    if q.shape[2] != pages.keys.shape[3]:
        raise ValueError(f"q and k must have heads of size {pages.keys.shape[3]}")
    _check_heads(q, rotation)
    _check_kv(k, v, pages)
    _launch(q, k, v, rotation, batch, _slots(batch, pages), pages)


def _slots(batch: AttentionBatch, pages: KVPages) -> Tensor:
    return map_slots(batch, pages.block_size) if batch.slot_mapping is None else batch.slot_mapping


def _launch(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    rotation: Rotation | None,
    batch: AttentionBatch,
    slots: Tensor,
    pages: KVPages | None,
) -> None:
    some = q if q is not None else k
    assert some is not None
    if not len(some):
        return
    num_heads, num_kv_heads = 0 if q is None else q.shape[1], 0 if k is None else k.shape[1]
    rotary_dim = 0 if rotation is None else rotation.cos_sin.shape[1]
    key_dim, value_dim = rotary_dim if k is None else k.shape[2], 0 if v is None else v.shape[2]
    keys, values = (None, None) if pages is None else (pages.keys, pages.values)
    fp8 = keys is not None and keys.dtype is torch.float8_e4m3fn
    if fp8:
        keys, values = (None if x is None else x.view(torch.uint8) for x in (keys, values))
    # A tensor that is not given is not read: any pointer of the right type will do.
    q, k = (some if x is None else x for x in (q, k))
    v = k if v is None else v
    keys = k if keys is None else keys
    values = keys if values is None else values
    cos_sin = torch.empty(0, dtype=torch.float32, device=some.device) if rotation is None else rotation.cos_sin
    rope_and_write_kv_kernel[(len(some), triton.cdiv(num_heads, HEADS) + triton.cdiv(num_kv_heads, HEADS))](
        q, k, v, cos_sin, batch.positions, slots, keys, values,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), keys.stride(0), values.stride(0),
        1.0 if pages is None else pages.key_scale, 1.0 if pages is None else pages.value_scale,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, ROTARY_DIM=rotary_dim,
        INTERLEAVED=rotation is not None and rotation.interleaved, BLOCK_SIZE=1 if pages is None else pages.block_size,
        FP8=fp8, HEADS=HEADS, **_blocks(rotary_dim, key_dim, value_dim), num_warps=NUM_WARPS,
        **launch_arguments(),
    )  # fmt: skip


def _blocks(rotary_dim: int, key_dim: int, value_dim: int) -> dict[str, int]:
    """Returns the kernel's padded sizes. A size of 0 is padded to 1, and then is not used."""
    sizes = {"BLOCK_PAIRS": rotary_dim // 2, "BLOCK_REST": key_dim - rotary_dim, "BLOCK_VALUE": value_dim}
    return {name: triton.next_power_of_2(max(1, size)) for name, size in sizes.items()}


def _check_heads(heads: Tensor, rotation: Rotation) -> None:
    cos_sin = rotation.cos_sin
    if heads.stride(2) != 1:
        raise ValueError("the last dimension of q and k must be contiguous")
    if not cos_sin.is_contiguous() or cos_sin.dtype != torch.float32:
        raise ValueError("cos_sin must be contiguous float32")
    if cos_sin.shape[1] % 2 or cos_sin.shape[1] > heads.shape[2]:
        raise ValueError(f"cos_sin must be [max_positions, even number up to {heads.shape[2]}]")


def _check_kv(k: Tensor, v: Tensor | None, pages: KVPages) -> None:
    num_kv_heads, block_size = pages.keys.shape[1:3]
    if (v is None) != pages.is_latent:
        raise ValueError("v must be given unless the pages are latent")
    for x, stored in zip((k, v), pages.tensors, strict=False):
        shape = (len(k), num_kv_heads, stored.shape[3])
        if x is None or x.shape != shape:
            raise ValueError(f"k and v must have shape {list(shape)} here")
        if x.stride(2) != 1:
            raise ValueError("the last dimension of k and v must be contiguous")
        if stored.stride()[1:] != (block_size * stored.shape[3], stored.shape[3], 1):
            raise ValueError("a page's [num_kv_heads, block_size, dim] must be contiguous")


def variants() -> Iterator[Variant]:
    """Yields both parts together, for heads that are rotated whole or in part, and each part alone."""
    for dtype, rotary_dim, head_dim, page, num_heads, num_kv_heads in (
        ("bf16", 64, 64, "bf16", 32, 8), ("bf16", 80, 80, "bf16", 32, 8), ("bf16", 128, 128, "bf16", 32, 8),
        ("bf16", 256, 256, "bf16", 32, 8), ("bf16", 128, 128, "u8", 32, 8), ("bf16", 64, 128, "bf16", 32, 8),
        ("fp16", 128, 128, "fp16", 32, 8), ("fp32", 128, 128, "fp32", 32, 8), ("bf16", 0, 128, "bf16", 0, 8),
        ("bf16", 64, 64, "bf16", 32, 0),
    ):  # fmt: skip
        tensors = {**dict.fromkeys("qkv", f"*{dtype}"), **dict.fromkeys(("keys", "values"), f"*{page}")}
        tables = {"cos_sin": "*fp32", "positions": "*i32", "slots": "*i64"}
        strides = [*(f"{name}{head}_stride" for name in "qkv" for head in ("", "_head")), "key_page_stride"]
        numbers = {**dict.fromkeys([*strides, "value_page_stride"], "i32:16"), "k_scale": "fp32", "v_scale": "fp32"}
        name = (
            f"rope {dtype} d{head_dim}" if num_heads and num_kv_heads else f"{'rope' if num_heads else 'write'} alone"
        )
        value_dim = head_dim if num_kv_heads else 0
        yield Variant(
            name
            + (f" of which {rotary_dim}" if 0 < rotary_dim < head_dim else "")
            + (" fp8 pages" if page == "u8" else ""),
            rope_and_write_kv_kernel,
            {**tensors, **tables, **numbers},
            {"NUM_HEADS": num_heads, "NUM_KV_HEADS": num_kv_heads, "KEY_DIM": head_dim, "VALUE_DIM": value_dim,
             "ROTARY_DIM": rotary_dim, "INTERLEAVED": rotary_dim != head_dim, "BLOCK_SIZE": 16, "FP8": page == "u8",
             "HEADS": HEADS, **_blocks(rotary_dim, head_dim, value_dim)},
            NUM_WARPS,
            num_stages=3,
        )  # fmt: skip
