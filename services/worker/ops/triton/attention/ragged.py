"""Paged attention of rows with several queries: prompt chunks, each at its own position in its own sequence.

A program takes one tile of queries of one row, with all query heads that share a KV head. In the matrix products, rows
of these GROUP heads are adjacent, so that keys and values are read once for all of them. The program reads the keys
from the first one that its first query sees up to the position of its last query (`tile.py`; FlashAttention-2, Dao,
2023).

    out[t, h] = Σ_n exp(s_thn) v_n / Σ_n exp(s_thn),   n over the visible positions of t's own sequence

The host lays out the tiles (`work.py`). Those with the most keys come first, so that the last programs to start are
short. Programs past the number of tiles, which they read from device memory, do nothing.

This kernel can compute any row, also one with a single query. The result, to the bit, depends only on the row's own
sequence: keys are added tile by tile from the first one, and a query's result is changed neither by the other queries
of its tile nor by tiles of keys that only those queries see. Therefore batch-invariant mode computes all rows with this
kernel. For decodes, this kernel is slower than `decode.py` in two ways. A decode has only one program per KV head, so a
few long sequences leave most of a GPU idle (with 8 KV heads, one sequence of 8,192 tokens keeps 8 programs busy instead
of 256). And a row with one query takes the time of BLOCK_M rows in the matrix products, but uses only GROUP of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from services.worker.ops.triton.attention import tuning
from services.worker.ops.triton.attention.tile import add_sinks, attend
from services.worker.ops.triton.attention.work import ENTRY, NUM_TILES
from services.worker.ops.triton.variant import Variant


# Without these lists, Triton would compile the kernel again when one of the listed arguments becomes, or stops being, a
# multiple of 16. The arguments change from step to step and from layer to layer.
@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=["work", "block_tables"])
def ragged_attention(
    q: tl.tensor,  # [num_tokens, KV_HEADS * GROUP, HEAD_DIM], last dimension contiguous
    keys: tl.tensor,  # [num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM], pages contiguous; fp8 as int16 [..., HEAD_DIM / 2]
    values: tl.tensor,  # [num_blocks, KV_HEADS, BLOCK_SIZE, VALUE_DIM], as keys
    out: tl.tensor,  # [num_tokens, KV_HEADS * GROUP, VALUE_DIM], contiguous
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
    scale: tl.tensor,  # the scores' scale, times the scale of the keys and log2(e)
    value_scale: tl.tensor,
    TILES_AT: tl.constexpr,
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
) -> None:
    """Grid: at least KV_HEADS programs for each tile of the work list."""
    tile = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    if tile < tl.load(work + NUM_TILES):
        entry = work + TILES_AT + tile * ENTRY
        row = tl.load(entry).to(tl.int64)
        first_token = tl.load(entry + 1).to(tl.int64)
        first_position = tl.load(entry + 2)
        num_queries = tl.load(entry + 3)
        places = tl.arange(0, BLOCK_M)
        dims = tl.arange(0, BLOCK_V)
        queries = places // GROUP
        heads = kv_head * GROUP + places % GROUP
        mask = (queries < num_queries)[:, None] & (dims < VALUE_DIM)[None, :]
        # 64 bits for the tile, 32 within it: a 64-bit offset per row would take registers throughout.
        q += first_token * q_token_stride
        out += first_token * (KV_HEADS * GROUP * VALUE_DIM)
        lowest = 0
        if WINDOW:
            lowest = tl.maximum(first_position - window + 1, 0)
        if CHUNK > 0:
            lowest = first_position // CHUNK * CHUNK
        greatest, total, weighted = attend(
            q + queries * q_token_stride + heads * q_head_stride,
            queries < num_queries,
            first_position + queries,
            lowest // BLOCK_N * BLOCK_N,
            first_position + num_queries,
            lowest,
            block_tables + row * table_stride,
            keys, values, kv_head, key_stride, value_stride, slopes + heads, window, scale,
            WINDOW, CHUNK, SOFT_CAP, SLOPES, LATENT, HEAD_DIM, VALUE_DIM, BLOCK_SIZE, COMPUTE, NATIVE, BLOCK_M, BLOCK_N,
            BLOCK_D, BLOCK_V, BLOCK_REST,
        )  # fmt: skip
        if SINKS:
            total = add_sinks(greatest, total, sinks + heads, queries < num_queries)
        result = weighted * (value_scale / total)[:, None]
        at_out = ((queries * (KV_HEADS * GROUP) + heads) * VALUE_DIM)[:, None] + dims[None, :]
        tl.store(out + at_out, result.to(out.dtype.element_ty), mask=mask)


def variants() -> Iterator[Variant]:
    """Yields one variant of the kernel for each shape in `tuning.served()`."""
    for served in tuning.served():
        config = served.tuning.ragged
        constexprs = {**served.constexprs, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "TILES_AT": 8192}
        yield Variant(
            f"ragged {served.name}",
            ragged_attention,
            served.signature,
            constexprs,
            config.num_warps,
            config.num_stages,
            (served.capability,),
        )
