"""y = x Wᵀ + b for many rows, with weights of 4 or 8 bits that are first turned into x's type.

    W[n, k] = scale[n, g] · (q[n, k] - zero[n, g]), rounded once to x's type          zero: only of weights of 4 bits

The kernels of `four_bit.py` and `eight_bit_weights.py` convert the weight again for every tile of rows. They are the
fastest for few rows, which are bound by reading the weight. For many rows, the tensor cores are the bound. Then one
pass over the weight, bound by memory, and cuBLAS take less time together, although W is rounded. In batch-invariant
mode, and in float32, the kernels compute products of any number of rows.

Each program converts one step of the packed layout for BLOCK_OUTS outputs. Programs of consecutive steps have
consecutive ids, so that the rows of W are written in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton import eight_bit_weights, four_bit
from services.worker.ops.triton.eight_bit_weights import EightBitLayout
from services.worker.ops.triton.four_bit import FourBitLayout, scales_and_zeros
from services.worker.ops.triton.variant import Variant
from services.worker.ops.triton.widen import from_bytes, from_nibbles

# Least number of rows of x for which the weight is dequantized. On an H200, the products of 2,048 tokens with 4-bit
# weights of Llama-3.1-8B's shapes took 80 ms with `four_bit_kernel`, and 37.5 ms with cuBLAS and weights in bfloat16:
# 0.021 ms less per token. To dequantize 7.0 billion weights, 2.5 bytes for each are read or written, which takes 4.4 ms
# at 4 TB/s (an estimate). So it takes less time from about 210 tokens on. Weights of 8 bits were not measured. The
# number is at most the largest one of warm-up's steps (`startup/warm_up.py`), so that the kernels are compiled before
# the first request.
DEQUANTIZED_ROWS = 256
# Most elements of a weight that are dequantized at a time. The 28,672 x 4,096 elements of the largest layer of
# Llama-3.1-8B fit; outputs of larger weights are computed in several parts.
MAX_ELEMENTS = 1 << 27

_BLOCK_OUTS = 64
_NUM_WARPS = 4


@triton.jit
def _store_columns(weight, values, scale, rows, columns, count, K: tl.constexpr, WHOLE: tl.constexpr):
    """Stores values [BLOCK_OUTS, LANES] · scale [BLOCK_OUTS] in W. WHOLE: every step ends within K."""
    mask = (rows < count)[:, None]
    if not WHOLE:
        mask = mask & (columns < K)[None, :]
    product = values.to(tl.float32) * scale[:, None]
    tl.store(weight + rows[:, None] * K + columns[None, :], product.to(weight.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["first", "count"])
def dequantize_four_bit_kernel(
    packed,  # int16 [steps, N, LANES]
    words,  # `FourBitLayout.words`: int32 [groups, N], or int64 if the scales are float32
    weight,  # output: [count, K]
    first,  # index of the first output
    count,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of LANES
    SCALE: tl.constexpr,  # the scales' type
    BLOCK_OUTS: tl.constexpr,
    LANES: tl.constexpr,
):
    step = tl.program_id(0)
    rows = (tl.program_id(1) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)).to(tl.int64)
    outs = tl.minimum(first + rows, N - 1)
    lanes = tl.arange(0, LANES)
    word = tl.load(packed + (step * N + outs)[:, None] * LANES + lanes[None, :])
    scales, zeros = scales_and_zeros(words, step, outs, N, K, GROUP, SCALE, LANES)
    values = from_nibbles(word, zeros, weight.dtype.element_ty)
    columns = step * 4 * LANES + lanes
    whole: tl.constexpr = K % (4 * LANES) == 0
    for quarter in tl.static_range(4):
        _store_columns(weight, values[quarter], scales[quarter], rows, columns + quarter * LANES, count, K, whole)


@triton.jit(do_not_specialize=["first", "count"])
def dequantize_eight_bit_kernel(
    packed,  # int16 [steps, N, LANES]
    scales,  # float32 [groups, N]
    weight,  # output: [count, K]
    first,  # index of the first output
    count,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of LANES; 0: one scale per output
    IS_FP8: tl.constexpr,  # else int8
    BLOCK_OUTS: tl.constexpr,
    LANES: tl.constexpr,
):
    step = tl.program_id(0)
    rows = (tl.program_id(1) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)).to(tl.int64)
    outs = tl.minimum(first + rows, N - 1)
    lanes = tl.arange(0, LANES)
    word = tl.load(packed + (step * N + outs)[:, None] * LANES + lanes[None, :])
    values = from_bytes(word, weight.dtype.element_ty, IS_FP8)
    columns = step * 2 * LANES + lanes
    whole: tl.constexpr = K % (2 * LANES) == 0
    for half in tl.static_range(2):
        group = 0
        if GROUP != 0:
            group = tl.minimum((step * 2 + half) * LANES // GROUP, (K - 1) // GROUP)
        scale = tl.load(scales + group * N + outs)
        _store_columns(weight, values[half], scale, rows, columns + half * LANES, count, K, whole)


class Scratch:
    """A buffer in which the layers of a device dequantize their weights, one after the other in the device's current
    stream. Layers reserve memory when they are created, so that serving allocates none, and that the memory which
    remains for the KV cache is measured without it. A CUDA graph that uses the buffer must not be recorded before the
    last layer is created."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """`dtype`: type of the activations."""
        self._device, self._dtype = device, dtype
        self._buffer: Tensor | None = None

    def reserve(self, n: int, k: int) -> None:
        """Reserves memory for a weight of n outputs and k inputs."""
        size = outputs_at_a_time(n, k) * k
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = None  # frees the memory first
            self._buffer = torch.empty(size, dtype=self._dtype, device=self._device)

    def weight(self, count: int, k: int) -> Tensor:
        """Returns memory for `count` outputs, [count, k], which the next call returns again."""
        assert self._buffer is not None, "reserved when the layer was created"
        return self._buffer[: count * k].view(count, k)


def outputs_at_a_time(n: int, k: int) -> int:
    """Returns how many outputs of a weight are dequantized together."""
    return n if n * k <= MAX_ELEMENTS else max(1, MAX_ELEMENTS // k // _BLOCK_OUTS) * _BLOCK_OUTS


def product_dequantized(
    x: Tensor, weight: FourBitLayout | EightBitLayout, bias: Tensor | None, scratch: Scratch
) -> Tensor:
    """Returns x · weightᵀ + bias, [m, N]. x [m, K]: in the `dtype` that the layout was made for. bias [N]. `scratch`:
    has reserved memory for the weight."""
    if isinstance(weight, FourBitLayout) and weight.input_order is not None:
        x = x.index_select(1, weight.input_order)
    n = weight.packed.shape[1]
    y = torch.empty((len(x), n), dtype=x.dtype, device=x.device)
    together = outputs_at_a_time(n, weight.in_features)
    for first in range(0, n, together):
        part = slice(first, min(n, first + together))
        floats = scratch.weight(part.stop - first, weight.in_features)
        dequantize(weight, first, floats)
        if bias is None:
            torch.mm(x, floats.t(), out=y[:, part])
        else:
            torch.addmm(bias[part], x, floats.t(), out=y[:, part])
    return y


def dequantize(weight: FourBitLayout | EightBitLayout, first: int, into: Tensor) -> None:
    """Writes outputs from `first` on to `into` [count, in_features], contiguous, without a weight's `input_order`. The
    type of `into` must be the one that the layout was made for."""
    steps, n, lanes = weight.packed.shape
    count, k = into.shape
    grid = (steps, triton.cdiv(count, _BLOCK_OUTS))
    if isinstance(weight, FourBitLayout):
        groups = len(weight.words)
        dequantize_four_bit_kernel[grid](
            weight.packed, weight.words, into, first, count, N=n, K=k,
            GROUP=k // groups if groups > 1 else steps * 4 * lanes, SCALE=four_bit.TRITON_TYPES[weight.scale_type],
            BLOCK_OUTS=_BLOCK_OUTS, LANES=lanes, num_warps=_NUM_WARPS,
        )  # fmt: skip
    else:
        groups = len(weight.scales)
        dequantize_eight_bit_kernel[grid](
            weight.packed, weight.scales, into, first, count, N=n, K=k, GROUP=k // groups if groups > 1 else 0,
            IS_FP8=weight.is_fp8, BLOCK_OUTS=_BLOCK_OUTS, LANES=lanes, num_warps=_NUM_WARPS,
        )  # fmt: skip


def variants() -> Iterator[Variant]:
    integers = {"first": "i32", "count": "i32"}
    for dtype, scale, group, k in (
        ("bf16", tl.bfloat16, 128, 4096), ("bf16", tl.bfloat16, 32, 4096), ("bf16", tl.float16, 0, 4096),
        ("fp16", tl.float16, 128, 4096), ("fp16", tl.float32, 64, 4096), ("fp16", tl.float16, 32, 544),
    ):  # fmt: skip
        lanes = four_bit.lanes_of(k, group, four_bit.HALF.k // 4)
        words = "*i64" if scale == tl.float32 else "*i32"
        yield Variant(
            f"dequantize_four_bit {dtype}, groups of {group or 'all'} in {scale}, {k} inputs",
            dequantize_four_bit_kernel,
            {"packed": "*i16", "words": words, "weight": f"*{dtype}", **integers},
            {"N": 4096, "K": k, "GROUP": group or triton.cdiv(k, 4 * lanes) * 4 * lanes, "SCALE": scale,
             "BLOCK_OUTS": _BLOCK_OUTS, "LANES": lanes},
            _NUM_WARPS,
            num_stages=3,
        )  # fmt: skip
    for dtype, is_fp8, group, k in (
        ("bf16", False, 0, 4096), ("bf16", False, 32, 4096), ("fp16", False, 0, 4096), ("fp16", False, 32, 528),
        ("bf16", True, 0, 4096), ("fp16", True, 0, 4096),
    ):  # fmt: skip
        table = eight_bit_weights.HALF_IN_GROUPS if group else eight_bit_weights.HALF
        yield Variant(
            f"dequantize_eight_bit {dtype} from {'fp8' if is_fp8 else 'int8'}, groups of {group or 'all'}, {k} inputs",
            dequantize_eight_bit_kernel,
            {"packed": "*i16", "scales": "*fp32", "weight": f"*{dtype}", **integers},
            {"N": 4096, "K": k, "GROUP": group, "IS_FP8": is_fp8, "BLOCK_OUTS": _BLOCK_OUTS,
             "LANES": eight_bit_weights.lanes_of(k, group, table.k // 2)},
            _NUM_WARPS,
            num_stages=3,
        )  # fmt: skip
