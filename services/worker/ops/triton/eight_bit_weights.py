"""y = x Wᵀ + b with weights of 8 bits, int8 or fp8 e4m3, and floating-point activations (weight-only).

    y[m, n] = Σ_g scale[n, g] · (Σ_{k in g} x[m, k] · v[n, k]) + b[n]           v exact in x's type

The scale, float32, multiplies the sum of its group, or the whole sum if an output has only one scale. So W = scale · v
is never computed, and not rounded. (LLM.int8(), Dettmers et al., 2022, section 3; Micikevicius et al., 2022, for fp8.)
Products with many rows are computed in `dequantize.py` instead, except in batch-invariant mode and in float32.

The weight is repacked at load, as in `four_bit.py`. K is cut into steps of 2 · LANES columns. Word j of a step holds
the step's columns j (low byte) and LANES + j (high byte). The low bytes are the operand of one product and the high
bytes of another, so that a register of two words converts directly to both operands (`widen.py`). Words are stored
[steps, N, LANES], so that a program's load for a step is contiguous. `tiles.py` describes the tiles and the split of K.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.prefetch import prefetch_steps
from services.worker.ops.triton.split_k import finish_stretch, scratch_of, scratch_types
from services.worker.ops.triton.tiles import (
    GROUP_ROWS,
    LEAST_K,
    Tiles,
    TileTable,
    cut,
    load_part,
    tile_of_program,
)
from services.worker.ops.triton.variant import Variant
from services.worker.ops.triton.widen import from_bytes
from services.worker.quantization.kinds import Fp8Weight, Int8Weight

# In these tables, `k` is the largest number of columns that one step of the kernel's loop takes. All tiles fit into 99
# KiB of shared memory; every GPU of compute capability 8.0 or higher has that much.
HALF = TileTable(
    (
        Tiles(rows=16, outs=128, k=128, num_warps=4, num_stages=3),
        Tiles(rows=32, outs=128, k=128, num_warps=4, num_stages=3),
        Tiles(rows=64, outs=128, k=128, num_warps=4, num_stages=3),
        Tiles(rows=128, outs=128, k=128, num_warps=8, num_stages=2),
    )
)
# Smaller tiles, for weights with several groups: the sum of a group takes registers in addition to the total.
HALF_IN_GROUPS = TileTable(
    (
        Tiles(rows=16, outs=128, k=64, num_warps=4, num_stages=4),
        Tiles(rows=32, outs=128, k=64, num_warps=4, num_stages=4),
        Tiles(rows=64, outs=128, k=64, num_warps=8, num_stages=3),
    )
)
SINGLE = TileTable(
    (
        Tiles(rows=16, outs=64, k=32, num_warps=8, num_stages=3),
        Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
    )
)


@triton.jit(do_not_specialize=["m"])
def eight_bit_weights_kernel(
    x,  # [m, K], rows x_stride apart
    packed,  # int16 [steps, N, LANES]
    scales,  # float32 [groups, N]
    bias,  # [N], read if BIAS
    y,  # [m, N]
    partials,  # see `finish_stretch`
    counters,
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of LANES; 0: one scale per output
    IS_FP8: tl.constexpr,  # else int8
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    STEPS: tl.constexpr,  # steps of K that one program computes
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    LANES: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    outs, rows = tile_of_program(m, N, BLOCK_OUTS, BLOCK_ROWS, GROUP_ROWS)
    lanes = tl.arange(0, LANES)
    last_out = tl.minimum(outs, N - 1)
    x_at = x + tl.minimum(rows, m - 1)[None, :] * x_stride + lanes[:, None]
    num_steps: tl.constexpr = (K + 2 * LANES - 1) // (2 * LANES)
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
    first = tl.program_id(1) * STEPS
    prefetch_steps(packed, last_out, first, num_steps, N, LANES, BLOCK_OUTS, PDL)
    wait_for_inputs(PDL)
    # Triton applies the num_stages of the launch only to the loads of operands of `tl.dot`. It applies the num_stages
    # of the loop also to the loads of scales, which are not such operands.
    for step in tl.range(first, tl.minimum(first + STEPS, num_steps), num_stages=STAGES):
        word = tl.load(packed + (step * N + last_out)[:, None] * LANES + lanes[None, :])
        low, high = from_bytes(word, x.dtype.element_ty, IS_FP8)
        x_low = load_part(x_at, step * 2, lanes, K, 2 * LANES, LANES)
        x_high = load_part(x_at, step * 2 + 1, lanes, K, 2 * LANES, LANES)
        if GROUP == 0:
            total = tl.dot(low, x_low, total, input_precision="ieee")
            total = tl.dot(high, x_high, total, input_precision="ieee")
        else:
            scale = tl.load(scales + (step * (2 * LANES) // GROUP) * N + last_out)
            partial = tl.dot(low, x_low, input_precision="ieee")
            if GROUP % (2 * LANES) != 0:
                total += partial * scale[:, None]
                partial = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
                group = tl.minimum((step * 2 + 1) * LANES // GROUP, (K - 1) // GROUP)
                scale = tl.load(scales + group * N + last_out)
            total += tl.dot(high, x_high, partial, input_precision="ieee") * scale[:, None]
    allow_next_launch(PDL)
    finish_stretch(
        total, y, scales, bias, y, partials, counters, outs, rows, m, N, False, GROUP == 0, BIAS, SPLITS, BLOCK_ROWS,
        BLOCK_OUTS,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EightBitLayout:
    """An `Int8Weight` or `Fp8Weight` in the layout of the kernel. The device holds no other copy of the weight."""

    packed: Tensor  # int16 [steps, out_features, lanes]
    scales: Tensor  # float32 [groups, out_features]
    in_features: int
    is_fp8: bool  # else int8

    @classmethod
    def of(cls, weight: Fp8Weight | Int8Weight, dtype: torch.dtype) -> EightBitLayout:
        """Repacks a weight. `dtype`: type of the activations."""
        n, k = weight.shape
        scales = weight.scales.float().reshape(n, -1).t().contiguous()
        lanes = lanes_of(k, k // len(scales) if len(scales) > 1 else 0, _table(dtype, len(scales)).k // 2)
        values, missing = weight.values.view(torch.uint8), -k % (2 * lanes)
        if missing:  # `pad` copies the tensor even if nothing is missing
            values = functional.pad(values, (0, missing))
        word = values.view(n, -1, 2, lanes).permute(1, 0, 3, 2).contiguous().view(torch.int16)
        return cls(word.squeeze(3), scales, k, isinstance(weight, Fp8Weight))

    def select_rows(self, ids: Tensor) -> Fp8Weight | Int8Weight:
        """Returns rows (outputs) `ids` of the weight, in the checkpoint's layout. ids: int64 [n]."""
        word = self.packed[:, ids].contiguous().unsqueeze(3).view(torch.uint8)  # [steps, n, lanes, 2]
        values = word.permute(1, 0, 3, 2).flatten(1)[:, : self.in_features].contiguous()
        scales = self.scales[:, ids].t()
        if self.is_fp8:
            return Fp8Weight(values.view(torch.float8_e4m3fn), scales.squeeze(1), quantize_activations=False)
        return Int8Weight(values.view(torch.int8), scales, quantize_activations=False)


def eight_bit_weights(
    x: Tensor, weight: EightBitLayout, bias: Tensor | None, *, batch_invariant: bool = False
) -> Tensor:
    """Returns x · weightᵀ + bias, [m, N]. x [m, K]: has contiguous rows, in the `dtype` that `EightBitLayout.of` was
    given. bias [N]. Raises ValueError for arguments that the kernel would misread."""
    steps, n, lanes = weight.packed.shape
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.stride(1) != 1:
        raise ValueError(f"x must be [m, {weight.in_features}] with contiguous rows")
    m, groups = len(x), len(weight.scales)
    if not m:
        return torch.empty((0, n), dtype=x.dtype, device=x.device)
    tiles = _table(x.dtype, groups).of(m)
    plan = cut(tiles, m, n, steps, may_split=not batch_invariant)
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    partials, counters = scratch_of(plan, y)
    eight_bit_weights_kernel[(plan.tiles, plan.splits)](
        x, weight.packed, weight.scales, y if bias is None else bias, y, partials, counters, m, x.stride(0),
        N=n, K=weight.in_features, GROUP=weight.in_features // groups if groups > 1 else 0, IS_FP8=weight.is_fp8,
        BIAS=bias is not None, SPLITS=plan.splits, STEPS=plan.steps, BLOCK_ROWS=tiles.rows, BLOCK_OUTS=tiles.outs,
        LANES=lanes, GROUP_ROWS=GROUP_ROWS, STAGES=tiles.num_stages, num_warps=tiles.num_warps,
        num_stages=tiles.num_stages, **launch_arguments(),
    )  # fmt: skip
    return y


def lanes_of(k: int, group: int, greatest: int) -> int:
    """Returns the number of lanes, a power of two from `LEAST_K` to `greatest`. If possible, a step of 2 · lanes
    columns divides K and the group, so that x ends at the end of a step and each step has one scale. `group`: inputs
    per scale; 0 if an output has one scale."""
    step = k if group == 0 else math.gcd(k, group)
    return max(LEAST_K, min(greatest, (step & -step) // 2))


def _table(x_type: torch.dtype, num_groups: int) -> TileTable:
    if x_type is torch.float32:
        return SINGLE
    return HALF_IN_GROUPS if num_groups > 1 else HALF


def variants() -> Iterator[Variant]:
    for dtype, is_fp8, groups in (
        ("bf16", False, (0, 32, 64)), ("fp16", False, (0, 32)), ("bf16", True, (0,)), ("fp16", True, (0,)),
        ("fp32", False, (0, 32)), ("fp32", True, (0,)),
    ):  # fmt: skip
        for group in groups:
            table = SINGLE if dtype == "fp32" else HALF_IN_GROUPS if group else HALF
            for size, tiles, k, split in table.launches(4096, 528):
                lanes = lanes_of(k, group, table.k // 2)
                tensors = {"x": f"*{dtype}", "packed": "*i16", "scales": "*fp32", "bias": f"*{dtype}"}
                kind = "fp8" if is_fp8 else "int8"
                yield Variant(
                    f"eight_bit_weights {dtype} x {kind}, {size}" + (f", groups of {group}" if group else ""),
                    eight_bit_weights_kernel,
                    {**tensors, "y": f"*{dtype}", **scratch_types(dtype, is_split=split), "m": "i32",
                     "x_stride": "i32:16"},
                    {"N": 4096, "K": k, "GROUP": group, "IS_FP8": is_fp8, "BIAS": True, "SPLITS": 4 if split else 1,
                     "STEPS": 8 if split else triton.cdiv(k, 2 * lanes), "BLOCK_ROWS": tiles.rows,
                     "BLOCK_OUTS": tiles.outs, "LANES": lanes, "GROUP_ROWS": GROUP_ROWS, "STAGES": tiles.num_stages},
                    tiles.num_warps,
                    tiles.num_stages,
                    loop_bytes=tiles.outs * lanes * 2 if split and tiles.rows <= 64 and dtype != "fp32" else 0,
                )  # fmt: skip
