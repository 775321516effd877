"""Paged attention of rows with one query. A sequence's keys are divided among programs.

Decoding reads every key and value of a sequence once and computes little with each, so its speed depends on how many
bytes are being loaded at a time. The keys that a layer sees are cut into equal parts (Flash-Decoding, Dao et al.,
2023), as many as the plan says (`work.py`). An item of work is one part of one sequence. The query heads that share a
KV head are the rows of one matrix product, padded to the 16 rows that a tensor core needs. So keys and values are read
once for all of these heads.

The host lays out the items of each batch. The grid has the same size for every batch: each program loops over items and
KV heads, and reads the number of items from device memory. So a launch recorded by a CUDA graph serves sequences of any
lengths.

For query head h, an item computes the following, with n over the visible positions of the part (`tile.py`):

    out[h] = Σ_n exp(s_hn) v_n / Σ_n exp(s_hn)

If a sequence has one part, out[h] is the output. Otherwise the item stores out[h] and log2 Σ_n exp(s_hn), and counts
itself. The program that counts last joins the parts (`join.py`) and sets the counter to 0 for the next layer. Counting
releases what the program has stored and acquires what the others have: every thread's stores come before the barrier,
the barrier before the count, and the count before the loads of the parts. A second launch for the joins took 3 us per
layer with one sequence of 512 tokens, and 44 us with 128 (H200, 2026-11-26).
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from services.worker.ops.triton.attention import tuning
from services.worker.ops.triton.attention.join import join_parts, parts_at_a_time
from services.worker.ops.triton.attention.tile import add_sinks, attend
from services.worker.ops.triton.attention.work import ITEM, ITEMS_AT, NUM_ITEMS
from services.worker.ops.triton.dependent_launch import allow_next_launch, wait_for_inputs
from services.worker.ops.triton.variant import Variant


# Without these lists, Triton would compile the kernel again when one of the listed arguments becomes, or stops being, a
# multiple of 16. The arguments change from step to step and from layer to layer.
@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=["work", "block_tables"])
def decode_attention(
    q: tl.tensor,  # [num_tokens, KV_HEADS * GROUP, HEAD_DIM], last dimension contiguous
    keys: tl.tensor,  # [num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM], pages contiguous; fp8 as int16 [..., HEAD_DIM / 2]
    values: tl.tensor,  # [num_blocks, KV_HEADS, BLOCK_SIZE, VALUE_DIM], as keys
    out: tl.tensor,  # [num_tokens, KV_HEADS * GROUP, VALUE_DIM], contiguous
    partial_out: tl.tensor,  # float32 [max_items, KV_HEADS * GROUP, VALUE_DIM]
    partial_lse: tl.tensor,  # float32 [max_items, KV_HEADS * GROUP]
    num_done: tl.tensor,  # int32 [max_items, KV_HEADS], all 0: parts that are stored, at the item of the first part
    work: tl.tensor,  # int32, `work.py`
    block_tables: tl.tensor,  # int32 [num_sequences, max_blocks]
    slopes: tl.tensor,  # float32 [KV_HEADS * GROUP], read if SLOPES
    sinks: tl.tensor,  # float32 [KV_HEADS * GROUP], read if SINKS
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    table_stride: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,  # factor of the scores: attention's scale · the scale of the keys · log2(e)
    value_scale: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SLOPES: tl.constexpr,
    SINKS: tl.constexpr,
    LATENT: tl.constexpr,
    COMPUTE: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_G: tl.constexpr,  # GROUP, padded to a power of two
    PARTS: tl.constexpr,  # parts that are joined at a time
    PDL: tl.constexpr,
) -> None:
    """Grid: any number of programs."""
    wait_for_inputs(PDL)
    num_items = tl.load(work + NUM_ITEMS)
    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_V)
    mask = (members < GROUP)[:, None] & (dims < VALUE_DIM)[None, :]
    # Heads vary fastest: they lie side by side in a page.
    for index in range(tl.program_id(0), num_items * KV_HEADS, tl.num_programs(0)):
        item = index // KV_HEADS
        kv_head = index % KV_HEADS
        entry = work + ITEMS_AT + item * ITEM
        row = tl.load(entry).to(tl.int64)
        token = tl.load(entry + 1).to(tl.int64)
        position = tl.load(entry + 2)
        part = tl.load(entry + 3)
        planned_parts = tl.load(entry + 4)
        first_item = tl.load(entry + 5)
        lowest = 0
        if WINDOW:
            lowest = tl.maximum(position - window + 1, 0)
        if CHUNK > 0:
            lowest = position // CHUNK * CHUNK
        first_tile = lowest // BLOCK_N
        num_tiles = position // BLOCK_N + 1 - first_tile
        tiles_per_part = tl.cdiv(num_tiles, planned_parts)
        begin = (first_tile + part * tiles_per_part) * BLOCK_N
        if begin <= position:  # a window can have fewer tiles than the plan has parts
            heads = kv_head * GROUP + members
            greatest, total, weighted = attend(
                q + token * q_token_stride + heads * q_head_stride,
                members < GROUP,
                position + tl.zeros([BLOCK_M], tl.int32),
                begin,
                tl.minimum(begin + tiles_per_part * BLOCK_N, position + 1),
                lowest,
                block_tables + row * table_stride,
                keys, values, kv_head, key_stride, value_stride, slopes + heads, window, scale,
                WINDOW, CHUNK, SOFT_CAP, SLOPES, LATENT, HEAD_DIM, VALUE_DIM, BLOCK_SIZE, COMPUTE, NATIVE, BLOCK_M,
                BLOCK_N, BLOCK_D, BLOCK_V, BLOCK_REST,
            )  # fmt: skip
            num_parts = tl.cdiv(num_tiles, tiles_per_part)
            if num_parts == 1:
                if SINKS:
                    total = add_sinks(greatest, total, sinks + heads, members < GROUP)
                result = weighted * (value_scale / total)[:, None]
                at_out = (token * (KV_HEADS * GROUP) + heads[:, None]) * VALUE_DIM + dims[None, :]
                tl.store(out + at_out, result.to(out.dtype.element_ty), mask=mask)
            else:
                result = weighted * (value_scale / total)[:, None]
                slots = item * (KV_HEADS * GROUP) + heads
                tl.store(partial_out + slots[:, None] * VALUE_DIM + dims[None, :], result, mask=mask)
                tl.store(partial_lse + slots, greatest + tl.log2(total), mask=members < GROUP)
                counter = num_done + first_item * KV_HEADS + kv_head
                tl.debug_barrier()
                if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_parts - 1:
                    tl.store(counter, 0)
                    group = tl.arange(0, BLOCK_G)
                    held = group < GROUP
                    of_group = kv_head * GROUP + group
                    highest, weight, joined = join_parts(
                        partial_out, partial_lse, first_item, num_parts, of_group, held, KV_HEADS * GROUP, VALUE_DIM,
                        BLOCK_G, BLOCK_V, PARTS,
                    )  # fmt: skip
                    if SINKS:
                        weight = add_sinks(highest, weight, sinks + of_group, held)
                    joined = joined / weight[:, None]
                    at_joined = (token * (KV_HEADS * GROUP) + of_group[:, None]) * VALUE_DIM + dims[None, :]
                    joined_mask = held[:, None] & (dims < VALUE_DIM)[None, :]
                    tl.store(out + at_joined, joined.to(out.dtype.element_ty), mask=joined_mask)
    allow_next_launch(PDL)


def variants() -> Iterator[Variant]:
    """Yields a variant for each shape of `tuning.served`."""
    for served in tuning.served():
        config = served.tuning.decode
        pointers = {"partial_out": "*fp32", "partial_lse": "*fp32", "num_done": "*i32"}
        constexprs = {**served.constexprs, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
        group, block_v = served.constexprs["GROUP"], served.constexprs["BLOCK_V"]
        assert isinstance(group, int)
        assert isinstance(block_v, int)
        constexprs |= {"BLOCK_G": group, "PARTS": parts_at_a_time(group, block_v)}
        yield Variant(
            f"decode {served.name}",
            decode_attention,
            {**served.signature, **pointers},
            constexprs,
            config.num_warps,
            config.num_stages,
            (served.capability,),
            0 if served.constexprs["COMPUTE"] == tl.float32 else config.block_n * served.position_bytes,
        )
