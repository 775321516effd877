"""y = x Wᵀ + b with weights of 4 bits in groups, dequantized as they are multiplied: AWQ, GPTQ and Q4_0.

    y[m, n] = Σ_g scale[n, g] · (Σ_{k in g} x[m, k] · (q[n, k] - zero[n, g])) + b[n]

(AWQ: Lin et al., 2023, section 4; GPTQ: Frantar et al., 2022.) q - zero is an exact integer in x's type, so the scale
is applied to a group's sum, in float32: W itself is never rounded.

The weight is repacked at load (`FourBitLayout`). A checkpoint's byte holds columns 2 j and 2 j + 1, which would have to
be interleaved again, between threads, before a product. Here K is cut into steps of 2 · HALF columns, and byte j of a
step holds its columns j (low) and HALF + j (high): both halves of the bytes are operands as they are. HALF divides a
group, so that each half has one scale. Bytes lie [steps, N, HALF]: what a program loads for a step is one stretch of
memory. Scales and zero points lie [groups, N], one word for both, for loads of 4 bytes that can run ahead.

How tiles are laid out and K is split: `tiles.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from services.worker.ops.triton.join_splits import join_splits
from services.worker.ops.triton.tiles import GROUP_ROWS, Tiles, TileTable, cut, finish, store_tile, tile_of_program
from services.worker.ops.triton.variant import Variant
from services.worker.quantization.int4 import Int4Weight, pack_nibbles, unpack_nibbles

# k: columns of a step at most. Within 99 KiB of shared memory, which every GPU from compute capability 8.0 on has.
HALF = TileTable(
    few=Tiles(rows=16, outs=64, k=128, num_warps=4, num_stages=5),
    some=Tiles(rows=64, outs=64, k=128, num_warps=4, num_stages=3),
    many=Tiles(rows=128, outs=128, k=128, num_warps=8, num_stages=2),
)
SINGLE = TileTable(
    few=Tiles(rows=16, outs=64, k=32, num_warps=4, num_stages=3),
    some=Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
    many=Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
)
LEAST_HALF = 16  # the shortest product of a tensor core


@triton.jit
def _scale_and_zero(word, scale_type: tl.constexpr):
    """float32 scales and uint8 zero points."""
    if scale_type == tl.float32:
        scale = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
        zero = (word >> 32).to(tl.uint8)
    else:
        scale = (word & 0xFFFF).to(tl.int16).to(scale_type, bitcast=True).to(tl.float32)
        zero = (word >> 16).to(tl.uint8)
    return scale, zero


@triton.jit(do_not_specialize=["m"])
def four_bit_kernel(
    x,  # [m, K], rows x_stride apart
    packed,  # uint8 [steps, N, HALF]
    words,  # int32, or int64 for scales in float32, [groups, N]
    bias,  # [N], read if BIAS
    y,  # [m, N]; float32 [splits, m, N] if SPLIT
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of HALF
    SCALE: tl.constexpr,  # the scales' type
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    STEPS: tl.constexpr,  # in a stretch
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    HALF: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
):
    outs, rows = tile_of_program(m, N, BLOCK_OUTS, BLOCK_ROWS, GROUP_ROWS)
    lanes = tl.arange(0, HALF)
    last_out = tl.minimum(outs, N - 1)
    x_at = x + tl.minimum(rows, m - 1)[None, :] * x_stride + lanes[:, None]
    num_steps: tl.constexpr = (K + 2 * HALF - 1) // (2 * HALF)
    last_group: tl.constexpr = (K - 1) // GROUP
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
    first = tl.program_id(1) * STEPS
    for step in range(first, tl.minimum(first + STEPS, num_steps)):
        low_column = step * (2 * HALF)
        high_column = low_column + HALF
        byte = tl.load(packed + (step * N + last_out)[:, None] * HALF + lanes[None, :])
        if K % (2 * HALF) == 0:
            x_low = tl.load(x_at + low_column)
            x_high = tl.load(x_at + high_column)
        else:
            x_low = tl.load(x_at + low_column, mask=(low_column + lanes < K)[:, None], other=0.0)
            x_high = tl.load(x_at + high_column, mask=(high_column + lanes < K)[:, None], other=0.0)
        scale, zero = _scale_and_zero(tl.load(words + (low_column // GROUP) * N + last_out), SCALE)
        low = ((byte & 15) - zero[:, None]).to(tl.int8, bitcast=True).to(x_low.dtype)
        partial = tl.dot(low, x_low, input_precision="ieee")
        if GROUP % (2 * HALF) != 0:
            total += partial * scale[:, None]
            partial = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
            group = tl.minimum(high_column // GROUP, last_group)
            scale, zero = _scale_and_zero(tl.load(words + group * N + last_out), SCALE)
        high = ((byte >> 4) - zero[:, None]).to(tl.int8, bitcast=True).to(x_low.dtype)
        total += tl.dot(high, x_high, partial, input_precision="ieee") * scale[:, None]
    if SPLIT:
        store_tile(y + tl.program_id(1).to(tl.int64) * m * N, total, outs, rows, m, N)
    else:
        finish(total, y, y, bias, y, outs, rows, m, N, False, False, BIAS)


@dataclass(frozen=True, slots=True)
class FourBitLayout:
    """An `Int4Weight` as the kernel reads it; the only copy."""

    packed: Tensor  # uint8 [steps, out_features, half]
    words: Tensor  # int32 or int64 [groups, out_features]: the scale's bits, and the zero point above them
    scale_type: torch.dtype
    in_features: int
    input_order: Tensor | None  # int32 [in_features]

    @property
    def half(self) -> int:
        return self.packed.shape[2]

    @staticmethod
    def takes(weight: Int4Weight) -> bool:
        """Whether its groups are made of halves that a tensor core takes."""
        groups = weight.scales.shape[1]
        return groups == 1 or weight.group_size % LEAST_HALF == 0

    @classmethod
    def of(cls, weight: Int4Weight, dtype: torch.dtype) -> FourBitLayout:
        """`dtype`: of the activations."""
        n, k = weight.shape
        group = weight.group_size if weight.scales.shape[1] > 1 else 0
        half = _half(group, _table(dtype).few.k // 2)
        q = functional.pad(unpack_nibbles(weight.packed), (0, -k % (2 * half)))
        low, high = q.view(n, -1, 2, half).unbind(2)
        bits = weight.scales.element_size() * 8
        narrow, wide = (torch.int32, torch.int64) if bits == 32 else (torch.int16, torch.int32)
        scales = weight.scales.contiguous().view(narrow).to(wide) & ((1 << bits) - 1)
        words = scales | weight.zero_points.to(wide) << bits
        return cls(
            (low | high << 4).transpose(0, 1).contiguous(), words.t().contiguous(), weight.scales.dtype, k,
            weight.input_order,
        )  # fmt: skip

    def select_rows(self, ids: Tensor) -> Int4Weight:
        """int64 [n] -> those outputs, as checkpoints have them."""
        packed = self.packed[:, ids].transpose(0, 1)  # [n, steps, half]
        q = torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)[:, : self.in_features]
        words = self.words[:, ids].t().contiguous()
        bits = self.scale_type.itemsize * 8
        scales = words.to(torch.int32 if bits == 32 else torch.int16).view(self.scale_type)
        return Int4Weight(pack_nibbles(q), scales, (words >> bits).to(torch.uint8), self.input_order)


def four_bit(x: Tensor, weight: FourBitLayout, bias: Tensor | None, *, batch_invariant: bool = False) -> Tensor:
    """[m, K] with contiguous rows, in the type that the layout was made for, [N] -> [m, N]. An `input_order` gathers x
    first, once for all programs. Raises ValueError for what the kernel would misread."""
    steps, n, half = weight.packed.shape
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.stride(1) != 1:
        raise ValueError(f"the weight wants contiguous rows of {weight.in_features}")
    if weight.input_order is not None:
        x = x.index_select(1, weight.input_order)
    m, groups = len(x), len(weight.words)
    if not m:
        return torch.empty((0, n), dtype=x.dtype, device=x.device)
    tiles = _table(x.dtype).of(m)
    plan = cut(tiles, m, n, steps, may_split=not batch_invariant)
    split = plan.splits > 1
    shape, dtype = ((plan.splits, m, n), torch.float32) if split else ((m, n), x.dtype)
    y = torch.empty(shape, dtype=dtype, device=x.device)
    four_bit_kernel[(plan.tiles, plan.splits)](
        x, weight.packed, weight.words, y if bias is None else bias, y, m, x.stride(0),
        N=n, K=weight.in_features, GROUP=weight.in_features // groups if groups > 1 else steps * 2 * half,
        SCALE=_TRITON_TYPES[weight.scale_type], BIAS=bias is not None, SPLIT=split, STEPS=plan.steps,
        BLOCK_ROWS=tiles.rows, BLOCK_OUTS=tiles.outs, HALF=half, GROUP_ROWS=GROUP_ROWS,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return join_splits(y, None, None, bias, x.dtype) if split else y


_TRITON_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _half(group: int, greatest: int) -> int:
    """A power of two that divides a group; half of one, where that is 32 at least, as two scales in a step cost
    registers. `greatest` where there is one group (0)."""
    power = group & -group
    return min(greatest, power, max(32, power // 2)) if group else greatest


def _table(x_type: torch.dtype) -> TileTable:
    return SINGLE if x_type is torch.float32 else HALF


def variants() -> Iterator[Variant]:
    for dtype, scale, group in (
        ("bf16", tl.bfloat16, 128), ("bf16", tl.bfloat16, 32), ("bf16", tl.float16, 0), ("fp16", tl.float16, 128),
        ("fp16", tl.float16, 32), ("fp16", tl.float32, 64), ("fp32", tl.float16, 128),
    ):  # fmt: skip
        table = SINGLE if dtype == "fp32" else HALF
        half = _half(group, table.few.k // 2)
        words = "*i64" if scale == tl.float32 else "*i32"
        for size, tiles, k, split in (
            ("few", table.few, 4096, True), ("some", table.some, 4096, True), ("many split", table.many, 4096, True),
            ("many", table.many, 4096, False), ("many short", table.many, 576, False),
        ):  # fmt: skip
            y = "fp32" if split else dtype
            tensors = {"x": f"*{dtype}", "packed": "*u8", "words": words, "bias": f"*{dtype}", "y": f"*{y}"}
            yield Variant(
                f"four_bit {dtype}, groups of {group or 'all'} in {scale}, {size} rows",
                four_bit_kernel,
                {**tensors, "m": "i32", "x_stride": "i32:16"},
                {"N": 4096, "K": k, "GROUP": group or triton.cdiv(k, 2 * half) * 2 * half, "SCALE": scale, "BIAS": True,
                 "SPLIT": split, "STEPS": 8 if split else triton.cdiv(k, 2 * half), "BLOCK_ROWS": tiles.rows,
                 "BLOCK_OUTS": tiles.outs, "HALF": half, "GROUP_ROWS": GROUP_ROWS},
                tiles.num_warps,
                tiles.num_stages,
            )  # fmt: skip
