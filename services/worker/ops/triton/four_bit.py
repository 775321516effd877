"""y = x Wᵀ + b with weights of 4 bits in groups, dequantized during the product: AWQ, GPTQ and Q4_0.

    y[m, n] = Σ_g scale[n, g] · (Σ_{k in g} x[m, k] · (q[n, k] - zero[n, g])) + b[n]

(AWQ: Lin et al., 2023, section 4; GPTQ: Frantar et al., 2022.) q - zero is an integer, which x's type represents
exactly. The scale multiplies the sum of its group, in float32. So W = scale · (q - zero) is never computed, and never
rounded. Products with many rows are computed in `dequantize.py` instead, except in batch-invariant mode and in float32.

The weight is repacked at load (`FourBitLayout`). A checkpoint's byte holds columns 2 j and 2 j + 1, which threads would
have to exchange before a product. So K is cut into steps of 4 · LANES columns, and word j of a step holds the step's
columns j, LANES + j, 2 · LANES + j and 3 · LANES + j, from the lowest bits up. The lowest 4 bits of all words are then
the operand of one product, the next 4 bits that of the next product, and so on (`widen.py`). The columns of one
product, a quarter of the step, have the same scale, because LANES divides a group. Words are stored [steps, N, LANES],
so that a program's load for a step is contiguous. A scale and its zero point share a word of at least 4 bytes, [groups,
N], because smaller loads cannot be asynchronous and run ahead.

`tiles.py` describes the tiles and the split of K.
"""

from __future__ import annotations

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
from services.worker.ops.triton.widen import from_nibbles
from services.worker.quantization.kinds import Int4Weight, pack_nibbles, unpack_nibbles

# In these tables, `k` is the largest number of columns per step. All tiles fit into 99 KiB of shared memory. Every GPU
# of compute capability 8.0 or higher has at least that much.
# The first is measured on an H200 (`python -m benchmarks.gpu tiles --quantization awq`), its last class with 192 rows.
HALF = TileTable(
    (
        Tiles(rows=16, outs=128, k=128, num_warps=4, num_stages=4),
        Tiles(rows=32, outs=128, k=128, num_warps=4, num_stages=4),
        Tiles(rows=64, outs=128, k=128, num_warps=8, num_stages=3),
        Tiles(rows=128, outs=128, k=128, num_warps=8, num_stages=3, programs=132),
        Tiles(rows=64, outs=128, k=128, num_warps=4, num_stages=3),
    )
)
# For steps with several quantization groups. The tiles are smaller, because the scales and sums of the groups take
# registers, too.
HALF_IN_GROUPS = TileTable(
    (
        Tiles(rows=16, outs=128, k=128, num_warps=4, num_stages=4),
        Tiles(rows=32, outs=128, k=128, num_warps=4, num_stages=3),
        Tiles(rows=64, outs=128, k=128, num_warps=8, num_stages=2),
    )
)
SINGLE = TileTable(
    (
        Tiles(rows=16, outs=64, k=64, num_warps=8, num_stages=3),
        Tiles(rows=64, outs=64, k=64, num_warps=8, num_stages=3),
    )
)


@triton.jit
def _scale_and_zero(
    words, quarter, outs, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, scale_type: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Returns the scales (float32) and zero points (uint8) of outputs `outs`, for the group that contains a quarter of
    a step. `quarter`: index of the quarter, counted over all steps of K."""
    last_group: tl.constexpr = (K - 1) // GROUP
    word = tl.load(words + tl.minimum(quarter * LANES // GROUP, last_group) * N + outs)
    if scale_type == tl.float32:
        scale = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
        zero = (word >> 32).to(tl.uint8)
    else:
        scale = (word & 0xFFFF).to(tl.int16).to(scale_type, bitcast=True).to(tl.float32)
        zero = (word >> 16).to(tl.uint8)
    return scale, zero


@triton.constexpr_function
def _quarters_with_one_scale(group: int, lanes: int) -> int:
    return 4 if group % (4 * lanes) == 0 else 2 if group % (2 * lanes) == 0 else 1


@triton.jit
def scales_and_zeros(
    words, step, outs, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, scale_type: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Returns the scales (float32 [BLOCK_OUTS]) and the zero points (uint8 [BLOCK_OUTS, 1]) of outputs `outs` for the
    four quarters of a step."""
    shared: tl.constexpr = _quarters_with_one_scale(GROUP, LANES)
    scale_0, zero_0 = _scale_and_zero(words, step * 4, outs, N, K, GROUP, scale_type, LANES)
    scale_1, zero_1, scale_2, zero_2, scale_3, zero_3 = scale_0, zero_0, scale_0, zero_0, scale_0, zero_0
    if shared == 2:
        scale_2, zero_2 = _scale_and_zero(words, step * 4 + 2, outs, N, K, GROUP, scale_type, LANES)
        scale_3, zero_3 = scale_2, zero_2
    if shared == 1:
        scale_1, zero_1 = _scale_and_zero(words, step * 4 + 1, outs, N, K, GROUP, scale_type, LANES)
        scale_2, zero_2 = _scale_and_zero(words, step * 4 + 2, outs, N, K, GROUP, scale_type, LANES)
        scale_3, zero_3 = _scale_and_zero(words, step * 4 + 3, outs, N, K, GROUP, scale_type, LANES)
    zeros = (zero_0[:, None], zero_1[:, None], zero_2[:, None], zero_3[:, None])
    return (scale_0, scale_1, scale_2, scale_3), zeros


@triton.jit(do_not_specialize=["m"])
def four_bit_kernel(
    x,  # [m, K], rows x_stride apart
    packed,  # int16 [steps, N, LANES]
    words,  # `FourBitLayout.words`: int32 [groups, N], or int64 if the scales are float32
    bias,  # [N], read if BIAS
    y,  # [m, N]
    partials,  # see `finish_stretch`
    counters,
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of LANES
    SCALE: tl.constexpr,  # the scales' type
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
    num_steps: tl.constexpr = (K + 4 * LANES - 1) // (4 * LANES)
    shared: tl.constexpr = _quarters_with_one_scale(GROUP, LANES)
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
    first = tl.program_id(1) * STEPS
    prefetch_steps(packed, last_out, first, num_steps, N, LANES, BLOCK_OUTS, PDL)
    wait_for_inputs(PDL)
    # If num_stages is given only at launch, Triton reads ahead only the operands of `tl.dot`. If num_stages is given at
    # the loop, Triton also reads ahead the scales and zero points, which are not operands of `tl.dot`.
    for step in tl.range(first, tl.minimum(first + STEPS, num_steps), num_stages=STAGES):
        word = tl.load(packed + (step * N + last_out)[:, None] * LANES + lanes[None, :])
        scales, zeros = scales_and_zeros(words, step, last_out, N, K, GROUP, SCALE, LANES)
        w_0, w_1, w_2, w_3 = from_nibbles(word, zeros, x.dtype.element_ty)
        partial = tl.dot(w_0, load_part(x_at, step * 4, lanes, K, 4 * LANES, LANES), input_precision="ieee")
        if shared == 1:
            total += partial * scales[0][:, None]
            partial = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
        partial = tl.dot(
            w_1, load_part(x_at, step * 4 + 1, lanes, K, 4 * LANES, LANES), partial, input_precision="ieee"
        )
        if shared <= 2:
            total += partial * scales[1][:, None]
            partial = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
        partial = tl.dot(
            w_2, load_part(x_at, step * 4 + 2, lanes, K, 4 * LANES, LANES), partial, input_precision="ieee"
        )
        if shared == 1:
            total += partial * scales[2][:, None]
            partial = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
        partial = tl.dot(
            w_3, load_part(x_at, step * 4 + 3, lanes, K, 4 * LANES, LANES), partial, input_precision="ieee"
        )
        total += partial * scales[3][:, None]
    allow_next_launch(PDL)
    finish_stretch(
        total, y, y, bias, y, partials, counters, outs, rows, m, N, False, False, BIAS, SPLITS, BLOCK_ROWS, BLOCK_OUTS
    )


@dataclass(frozen=True, slots=True)
class FourBitLayout:
    """An `Int4Weight` in the layout of the kernel. The device holds no other copy of the weight."""

    packed: Tensor  # int16 [steps, out_features, lanes]
    words: Tensor  # int32 or int64 [groups, out_features]: the scale's bits, with the zero point in the bits above
    scale_type: torch.dtype
    in_features: int
    input_order: Tensor | None  # int32 [in_features]

    @property
    def lanes(self) -> int:
        return self.packed.shape[2]

    @staticmethod
    def takes(weight: Int4Weight) -> bool:
        """Returns whether the kernel supports the weight: it must have one group, or the group size must be a multiple
        of `LEAST_K`. A tensor-core product takes at least `LEAST_K` inputs, and they must have the same scale."""
        groups = weight.scales.shape[1]
        return groups == 1 or weight.group_size % LEAST_K == 0

    @classmethod
    def of(cls, weight: Int4Weight, dtype: torch.dtype) -> FourBitLayout:
        """Repacks a weight into the layout that the kernel reads. `dtype`: type of the activations."""
        n, k = weight.shape
        group = weight.group_size if weight.scales.shape[1] > 1 else 0
        lanes = lanes_of(k, group, (SINGLE if dtype is torch.float32 else HALF).k // 4)
        # The values are repacked as bytes, because tensors of a wider type would take several times the weight's
        # memory.
        q = unpack_nibbles(functional.pad(weight.packed, (0, -k % (4 * lanes) // 2))).view(n, -1, 4, lanes)
        pairs = q[:, :, ::2] | q[:, :, 1::2] << 4  # low bytes of the words, then high bytes
        word = pairs.permute(1, 0, 3, 2).contiguous().view(torch.int16)
        bits = weight.scales.element_size() * 8
        narrow, wide = (torch.int32, torch.int64) if bits == 32 else (torch.int16, torch.int32)
        scales = weight.scales.contiguous().view(narrow).to(wide) & ((1 << bits) - 1)
        words = scales | weight.zero_points.to(wide) << bits
        return cls(word.squeeze(3), words.t().contiguous(), weight.scales.dtype, k, weight.input_order)

    def select_rows(self, ids: Tensor) -> Int4Weight:
        """Returns the rows `ids` (int64 [n]) of the weight, in the checkpoint's layout. Each row belongs to one
        output."""
        word = self.packed[:, ids].transpose(0, 1)  # [n, steps, lanes]
        q = torch.stack([(word >> shift & 15).to(torch.uint8) for shift in (0, 4, 8, 12)], dim=2)
        words = self.words[:, ids].t().contiguous()
        bits = self.scale_type.itemsize * 8
        scales = words.to(torch.int32 if bits == 32 else torch.int16).view(self.scale_type)
        packed = pack_nibbles(q.flatten(1)[:, : self.in_features])
        return Int4Weight(packed, scales, (words >> bits).to(torch.uint8), self.input_order)


def four_bit(x: Tensor, weight: FourBitLayout, bias: Tensor | None, *, batch_invariant: bool = False) -> Tensor:
    """Returns x · weightᵀ + bias, [m, N]. x [m, K]: has contiguous rows, in the `dtype` that `FourBitLayout.of` was
    given. bias [N]. If the weight has an `input_order`, x's columns are first copied in that order. Raises ValueError
    for arguments that the kernel would misread."""
    steps, n, lanes = weight.packed.shape
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.stride(1) != 1:
        raise ValueError(f"x must be [m, {weight.in_features}] with contiguous rows")
    if weight.input_order is not None:
        x = x.index_select(1, weight.input_order)
    m, groups = len(x), len(weight.words)
    if not m:
        return torch.empty((0, n), dtype=x.dtype, device=x.device)
    tiles = _table(x.dtype, lanes, weight.in_features // groups if groups > 1 else 0).of(m)
    plan = cut(tiles, m, n, steps, may_split=not batch_invariant)
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    partials, counters = scratch_of(plan, y)
    four_bit_kernel[(plan.tiles, plan.splits)](
        x, weight.packed, weight.words, y if bias is None else bias, y, partials, counters, m, x.stride(0),
        N=n, K=weight.in_features, GROUP=weight.in_features // groups if groups > 1 else steps * 4 * lanes,
        SCALE=TRITON_TYPES[weight.scale_type], BIAS=bias is not None, SPLITS=plan.splits, STEPS=plan.steps,
        BLOCK_ROWS=tiles.rows, BLOCK_OUTS=tiles.outs, LANES=lanes, GROUP_ROWS=GROUP_ROWS, STAGES=tiles.num_stages,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **launch_arguments(),
    )  # fmt: skip
    return y


TRITON_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def lanes_of(k: int, group: int, greatest: int) -> int:
    """Returns the number of lanes: the greatest power of two n up to `greatest` such that n divides the group and 4 n
    divides k, or `LEAST_K` if that is more. `group`: inputs per scale; 0 if an output has one scale."""
    lanes = min(greatest, (k & -k) // 4)
    return max(LEAST_K, min(lanes, group & -group) if group else lanes)


def _table(x_type: torch.dtype, lanes: int, group: int) -> TileTable:
    """Returns the tiles for these types and sizes. `group`: inputs per scale; 0 if an output has one scale."""
    if x_type is torch.float32:
        return SINGLE
    return HALF if group % (4 * lanes) == 0 else HALF_IN_GROUPS


def variants() -> Iterator[Variant]:
    for dtype, scale, group in (
        ("bf16", tl.bfloat16, 128), ("bf16", tl.bfloat16, 32), ("bf16", tl.float16, 0), ("fp16", tl.float16, 128),
        ("fp16", tl.float16, 32), ("fp16", tl.float32, 64), ("fp32", tl.float16, 128),
    ):  # fmt: skip
        x_type = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
        longest = (SINGLE if dtype == "fp32" else HALF).k // 4
        words = "*i64" if scale == tl.float32 else "*i32"
        for size, tiles, k, split in _table(x_type, lanes_of(4096, group, longest), group).launches(4096, 544):
            lanes = lanes_of(k, group, longest)
            if not split:
                tiles = _table(x_type, lanes, group).classes[-1]  # shorter steps may use another table
            steps = triton.cdiv(k, 4 * lanes)
            tensors = {"x": f"*{dtype}", "packed": "*i16", "words": words, "bias": f"*{dtype}", "y": f"*{dtype}"}
            yield Variant(
                f"four_bit {dtype}, groups of {group or 'all'} in {scale}, {size}",
                four_bit_kernel,
                {**tensors, **scratch_types(dtype, is_split=split), "m": "i32", "x_stride": "i32:16"},
                {"N": 4096, "K": k, "GROUP": group or steps * 4 * lanes, "SCALE": scale, "BIAS": True,
                 "SPLITS": 4 if split else 1, "STEPS": 8 if split else steps, "BLOCK_ROWS": tiles.rows,
                 "BLOCK_OUTS": tiles.outs, "LANES": lanes, "GROUP_ROWS": GROUP_ROWS, "STAGES": tiles.num_stages},
                tiles.num_warps,
                tiles.num_stages,
                loop_bytes=tiles.outs * lanes * 2 if split and tiles.rows <= 64 and dtype != "fp32" else 0,
            )  # fmt: skip
