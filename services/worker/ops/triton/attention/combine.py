"""Joins the partial results of `decode.py`, one per stretch of a sequence.

With o_i the attention over stretch i alone, and L_i = log2 Σ_n exp(s_n) over the scores s_n of its keys,

    out = Σ_i w_i o_i / Σ_i w_i,   w_i = exp2(L_i - max_j L_j)

(Flash-Decoding, Dao et al., 2023), in float32. One program computes one query head of one sequence. It adds PARTS
stretches at a time, in the order of their positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from services.worker.ops.triton.attention.tile import LOG2_E, LOWEST
from services.worker.ops.triton.attention.work import ENTRY, NUM_JOINS, SPLIT
from services.worker.ops.triton.variant import Variant

PARTS = 16
NUM_WARPS = 8


@triton.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=["work"])
def combine_splits(
    partial_out: tl.tensor,  # float32 [max_items, HEADS, VALUE_DIM]
    partial_lse: tl.tensor,  # float32 [max_items, HEADS]
    out: tl.tensor,  # [num_tokens, HEADS, VALUE_DIM], contiguous
    work: tl.tensor,  # int32, `work.py`
    sinks: tl.tensor,  # float32 [HEADS], read if SINKS
    window: tl.tensor,
    JOINS_AT: tl.constexpr,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SINKS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Program (i, h) executes join i of the plan for query head h: it joins the results of one sequence's stretches.
    Grid: [at least the number of joins, HEADS]. Programs beyond the number of joins do nothing."""
    join = tl.program_id(0)
    head = tl.program_id(1)
    if join < tl.load(work + NUM_JOINS):
        entry = work + JOINS_AT + join * ENTRY
        token = tl.load(entry).to(tl.int64)
        position = tl.load(entry + 1)
        first_item = tl.load(entry + 2)
        split = tl.load(work + SPLIT)
        first_part = 0
        if WINDOW:
            first_part = tl.maximum(position - window + 1, 0) // split
        if CHUNK > 0:
            first_part = position // CHUNK * CHUNK // split
        last_part = position // split
        if first_part < last_part:
            dims = tl.arange(0, BLOCK_V)
            greatest = LOWEST
            total = 0.0
            joined = tl.zeros([BLOCK_V], tl.float32)
            for start in range(first_part, last_part + 1, PARTS):
                parts = start + tl.arange(0, PARTS)
                held = parts <= last_part
                slots = (first_item + parts) * HEADS + head
                lse = tl.load(partial_lse + slots, mask=held, other=float("-inf"))
                at = slots[:, None] * VALUE_DIM + dims[None, :]
                results = tl.load(partial_out + at, mask=held[:, None] & (dims < VALUE_DIM)[None, :], other=0)
                above = tl.maximum(greatest, tl.max(lse, 0))
                weights = tl.exp2(lse - above)
                shrink = tl.exp2(greatest - above)
                greatest = above
                total = total * shrink + tl.sum(weights, 0)
                joined = joined * shrink + tl.sum(results * weights[:, None], 0)
            if SINKS:
                total += tl.exp2(tl.load(sinks + head) * LOG2_E - greatest)
            at_out = (token * HEADS + head) * VALUE_DIM + dims
            tl.store(out + at_out, (joined / total).to(out.dtype.element_ty), mask=dims < VALUE_DIM)


def variants() -> Iterator[Variant]:
    for dtype, head_dim, window in (
        ("bf16", 64, False),
        ("bf16", 128, False),
        ("fp16", 128, False),
        ("bf16", 256, True),
    ):
        signature = {
            "partial_out": "*fp32",
            "partial_lse": "*fp32",
            "out": f"*{dtype}",
            "work": "*i32",
            "sinks": "*fp32",
            "window": "i32",
        }
        shape = {"JOINS_AT": 4096, "HEADS": 32, "VALUE_DIM": head_dim, "WINDOW": window, "CHUNK": 0, "SINKS": window}
        yield Variant(
            f"combine {dtype} d{head_dim}" + (" window" if window else ""),
            combine_splits,
            signature,
            {**shape, "PARTS": PARTS, "BLOCK_V": head_dim},
            NUM_WARPS,
            num_stages=2,
        )
