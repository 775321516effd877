"""y = x Wᵀ + b with weights of 8 bits: with activations of 8 bits too (W8A8), or of floats (weight-only).

    y[m, n] = (Σ_k q[m, k] · v[n, k]) · x_scale[m] · scale[n] + b[n]          q and v int8: the sum exact, in int32
                                                                              q and v fp8 e4m3: the sum in float32
    y[m, n] = Σ_k x[m, k] · v[n, k] · scale[n, k // group] + b[n]             v int8 or fp8, exact in x's type

v lies as in the checkpoint, [N, K]: a step of K is whole lines of 128 bytes. Scales, float32, lie [groups, N]: the
outputs of a tile side by side. A scale per output is applied to the whole sum, one per group to the group's own sum, so
that weights are multiplied as the exact integers they are. (LLM.int8(), Dettmers et al., 2022, section 3; Micikevicius
et al., 2022, for fp8.) On Hopper, fp8 tensor cores add in fewer than 24 bits: each step of K is added up there, and the
steps in float32 proper. How tiles are laid out and K is split: `tiles.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.fp8 import from_e4m3
from services.worker.ops.triton.join_splits import join_splits
from services.worker.ops.triton.tiles import GROUP_ROWS, Tiles, TileTable, cut, finish, store_tile, tile_of_program
from services.worker.ops.triton.variant import TARGETS, Variant

# Within 99 KiB of shared memory, which every GPU from compute capability 8.0 on has.
QUANTIZED = TileTable(
    few=Tiles(rows=16, outs=64, k=128, num_warps=4, num_stages=5),
    some=Tiles(rows=64, outs=64, k=128, num_warps=4, num_stages=4),
    many=Tiles(rows=128, outs=128, k=128, num_warps=8, num_stages=3),
)
HALF = TileTable(
    few=Tiles(rows=16, outs=64, k=128, num_warps=4, num_stages=5),
    some=Tiles(rows=64, outs=64, k=128, num_warps=4, num_stages=3),
    many=Tiles(rows=128, outs=128, k=128, num_warps=8, num_stages=2),
)
# A group's sum takes registers beside the whole one's.
HALF_IN_GROUPS = TileTable(
    few=Tiles(rows=16, outs=64, k=64, num_warps=4, num_stages=5),
    some=Tiles(rows=64, outs=64, k=64, num_warps=4, num_stages=3),
    many=Tiles(rows=64, outs=128, k=64, num_warps=8, num_stages=3),
)
SINGLE = TileTable(
    few=Tiles(rows=16, outs=64, k=32, num_warps=4, num_stages=3),
    some=Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
    many=Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
)


@triton.jit(do_not_specialize=["m"])
def eight_bit_kernel(
    x,  # [m, K], rows x_stride apart; int8 or fp8 if ROW_SCALES, else floats
    weight,  # [N, K]; int8 or, with x in fp8, that; fp8's bytes (uint8) with x in floats
    scales,  # float32 [groups, N]
    row_scales,  # float32 [m], read if ROW_SCALES
    bias,  # [N], read if BIAS
    y,  # [m, N]; float32 or int32 [splits, m, N] if SPLIT
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of BLOCK_K; 0: one scale per output
    ROW_SCALES: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    STEPS: tl.constexpr,  # of K in a stretch
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    outs, rows = tile_of_program(m, N, BLOCK_OUTS, BLOCK_ROWS, GROUP_ROWS)
    lanes = tl.arange(0, BLOCK_K)
    last_out = tl.minimum(outs, N - 1)
    weight_at = weight + last_out[:, None] * K + lanes[None, :]
    x_at = x + tl.minimum(rows, m - 1)[None, :] * x_stride + lanes[:, None]
    exact: tl.constexpr = x.dtype.element_ty == tl.int8
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.int32 if exact else tl.float32)
    first = tl.program_id(1) * (STEPS * BLOCK_K)
    # With stages of its own, as the loop reads the scales ahead too, though no product takes them.
    for start in tl.range(first, tl.minimum(first + STEPS * BLOCK_K, K), BLOCK_K, num_stages=STAGES):
        if K % BLOCK_K == 0:
            w = tl.load(weight_at + start)
            a = tl.load(x_at + start)
        else:
            w = tl.load(weight_at + start, mask=(start + lanes < K)[None, :], other=0.0)
            a = tl.load(x_at + start, mask=(start + lanes < K)[:, None], other=0.0)
        if ROW_SCALES:
            total = tl.dot(w, a, total, max_num_imprecise_acc=None if exact else BLOCK_K, out_dtype=total.dtype)
        else:
            w = from_e4m3(w, a.dtype) if weight.dtype.element_ty == tl.uint8 else w.to(a.dtype)
            if GROUP == 0:
                total = tl.dot(w, a, total, input_precision="ieee")
            else:
                scale = tl.load(scales + (start // GROUP) * N + last_out)
                total += tl.dot(w, a, input_precision="ieee") * scale[:, None]
    if SPLIT:
        store_tile(y + tl.program_id(1).to(tl.int64) * m * N, total, outs, rows, m, N)
    else:
        finish(total, row_scales, scales, bias, y, outs, rows, m, N, ROW_SCALES, GROUP == 0, BIAS)


def eight_bit(
    x: Tensor,
    values: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    *,
    row_scales: Tensor | None = None,
    batch_invariant: bool = False,
) -> Tensor:
    """[m, K] with contiguous rows; int8 or float8_e4m3fn [N, K]; float32 [groups, N]; [N] -> [m, N] in `dtype`.

    With `row_scales`, float32 [m], x is of the weight's type, else of `dtype`. Groups are multiples of 16 inputs.
    Raises ValueError for what the kernel would misread.
    """
    (m, k), (n, _) = x.shape, values.shape
    if row_scales is None and values.dtype is torch.float8_e4m3fn:
        values = values.view(torch.uint8)
    if x.shape[1] != values.shape[1] or x.stride(1) != 1 or not values.is_contiguous() or not scales.is_contiguous():
        raise ValueError(f"a weight [{n}, {values.shape[1]}] wants contiguous rows of as many inputs")
    if x.dtype is not (dtype if row_scales is None else values.dtype):
        raise ValueError(f"x is {x.dtype}, which a {values.dtype} weight is not multiplied with")
    if not m:
        return torch.empty((0, n), dtype=dtype, device=x.device)
    group = 0 if len(scales) == 1 else k // len(scales)
    tiles = _table(x.dtype, group).of(m)
    step = _step(group, tiles.k)
    plan = cut(tiles, m, n, triton.cdiv(k, step), may_split=not batch_invariant)
    split = plan.splits > 1
    if split:
        y = torch.empty((plan.splits, m, n), dtype=_sum_type(x.dtype), device=x.device)
    else:
        y = torch.empty((m, n), dtype=dtype, device=x.device)
    eight_bit_kernel[(plan.tiles, plan.splits)](
        x, values, scales, scales if row_scales is None else row_scales, scales if bias is None else bias, y, m,
        x.stride(0), N=n, K=k, GROUP=group, ROW_SCALES=row_scales is not None, BIAS=bias is not None, SPLIT=split,
        STEPS=plan.steps, BLOCK_ROWS=tiles.rows, BLOCK_OUTS=tiles.outs, BLOCK_K=step, GROUP_ROWS=GROUP_ROWS,
        STAGES=tiles.num_stages, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return join_splits(y, row_scales, None if group else scales, bias, dtype) if split else y


def _step(group: int, greatest: int) -> int:
    """Of K: the greatest power of two that divides a group of inputs; `greatest` where there is one group (0)."""
    return min(greatest, group & -group) if group else greatest


def _table(x_type: torch.dtype, group: int) -> TileTable:
    if x_type.itemsize == 1:
        return QUANTIZED
    if x_type is torch.float32:
        return SINGLE
    return HALF_IN_GROUPS if group else HALF


def _sum_type(x_type: torch.dtype) -> torch.dtype:
    return torch.int32 if x_type is torch.int8 else torch.float32


_TYPES = {
    "i8": torch.int8, "fp8e4nv": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp16": torch.float16,
    "fp32": torch.float32,
}  # fmt: skip


def variants() -> Iterator[Variant]:
    from_8_9 = tuple(target for target in TARGETS if target >= 89)
    for x, weight, dtype, groups, targets in (
        ("i8", "i8", "bf16", (0,), TARGETS), ("fp8e4nv", "fp8e4nv", "bf16", (0,), from_8_9),
        ("bf16", "i8", "bf16", (0, 32, 64), TARGETS), ("fp16", "i8", "fp16", (0, 32), TARGETS),
        ("bf16", "u8", "bf16", (0,), TARGETS), ("fp16", "u8", "fp16", (0,), TARGETS),
        ("fp32", "i8", "fp32", (0, 32), TARGETS), ("fp32", "u8", "fp32", (0,), TARGETS),
    ):  # fmt: skip
        quantized = x in ("i8", "fp8e4nv")
        for group in groups:
            table = _table(_TYPES[x], group)
            for size, tiles, k, split in (
                ("few", table.few, 4096, True), ("some", table.some, 4096, True),
                ("many split", table.many, 4096, True), ("many", table.many, 4096, False),
                ("many short", table.many, 576, False),
            ):  # fmt: skip
                step = _step(group, tiles.k)
                y = ("i32" if x == "i8" else "fp32") if split else dtype
                tensors = {"x": x, "weight": weight, "scales": "fp32", "row_scales": "fp32", "bias": dtype, "y": y}
                yield Variant(
                    f"eight_bit {x} x {weight}, {size} rows" + (f", groups of {group}" if group else ""),
                    eight_bit_kernel,
                    {**{name: f"*{kind}" for name, kind in tensors.items()}, "m": "i32", "x_stride": "i32:16"},
                    {"N": 4096, "K": k, "GROUP": group, "ROW_SCALES": quantized, "BIAS": True, "SPLIT": split,
                     "STEPS": 8 if split else triton.cdiv(k, step), "BLOCK_ROWS": tiles.rows,
                     "BLOCK_OUTS": tiles.outs, "BLOCK_K": step, "GROUP_ROWS": GROUP_ROWS, "STAGES": tiles.num_stages},
                    tiles.num_warps,
                    tiles.num_stages,
                    targets,
                )  # fmt: skip
