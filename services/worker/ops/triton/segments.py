"""Adds up consecutive rows, for mean pooling of sequences that are computed in chunks.

    totals[i] += x[starts[i]] + ... + x[starts[i + 1] - 1]            in float32

A program adds the rows of one segment one after the other to the segment's total, for BLOCK columns. So the total has
the same bits whether the rows come in one call or in several, and does not depend on other segments.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.triton.variant import Variant
from services.worker.transfers import upload

BLOCK = 256
NUM_WARPS = 4


@triton.jit
def add_segments_kernel(
    totals,  # float32 [n, features]
    x,  # [num_rows, features]
    starts,  # int64 [n + 1]
    features,
    BLOCK: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < features
    total = tl.load(totals + segment * features + columns, mask=mask, other=0.0)
    end = tl.load(starts + segment + 1)
    row = tl.load(starts + segment)
    while row < end:
        total += tl.load(x + row * features + columns, mask=mask, other=0.0).to(tl.float32)
        row += 1
    tl.store(totals + segment * features + columns, total, mask=mask)


def add_segments(totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
    """See `interface.Ops`. Raises ValueError for a layout that the kernel would misread."""
    count, features = totals.shape
    if totals.dtype is not torch.float32 or not totals.is_contiguous() or not x.is_contiguous():
        raise ValueError("add_segments needs contiguous float32 totals and a contiguous x")
    if x.shape[1] != features or len(starts) != count + 1:
        raise ValueError(
            f"{x.shape[1]} columns and {len(starts) - 1} segments do not match totals [{count}, {features}]"
        )
    if count:
        at = upload(starts, totals.device)
        add_segments_kernel[(count, triton.cdiv(features, BLOCK))](
            totals, x, at, features, BLOCK=BLOCK, num_warps=NUM_WARPS
        )


def variants() -> Iterator[Variant]:
    for dtype in ("bf16", "fp32"):
        yield Variant(
            f"add_segments {dtype}",
            add_segments_kernel,
            {"totals": "*fp32", "x": f"*{dtype}", "starts": "*i64", "features": "i32:16"},
            {"BLOCK": BLOCK},
            NUM_WARPS,
            num_stages=3,
        )
