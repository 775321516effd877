"""Activations, alone or gated: act(gate) · up, with gate the first and up the second half of the last dimension.

    silu(x) = x · σ(x)                                          (Elfwing et al., 2017)
    gelu(x) = x · (1 + erf(x / √2)) / 2                         (Hendrycks and Gimpel, 2016)
    gelu_tanh(x) = x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2 = x · σ(2 √(2/π) · (x + 0.044715 x³))
    quick_gelu(x) = x · σ(1.702 x)
    relu(x) = max(x, 0), and its square                         (So et al., 2021)
    sigmoid(x) = σ(x)

because (1 + tanh z) / 2 = σ(2z). σ(z) = 1 / (1 + exp(-z)) is correct at both infinities. Only gated, clamped_silu is
g · σ(1.702 g) · (u + 1) with g = min(gate, 7) and u = up within -7 .. 7 (gpt-oss). float32, rounded once.
[num_tokens, features] or [num_tokens, 2 · features] -> [num_tokens, features], both contiguous. A gated activation can
be quantized to 8 bits at once, with a scale per row; the bits are those of `quantize_rows` of the rounded result.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.interface import Activation
from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.quantize_rows import QuantizedRows, as_bytes, empty_rows, row_scales, to_codes
from services.worker.ops.triton.variant import Variant

BLOCK = 1024
NUM_WARPS = 4
# Maximum number of elements that a program activates and quantizes at a time: a whole row of most models.
MAX_QUANTIZED_BLOCK = 16384

_GELU = tl.constexpr(Activation.GELU.value)
_SILU = tl.constexpr(Activation.SILU.value)
_GELU_TANH = tl.constexpr(Activation.GELU_TANH.value)
_RELU = tl.constexpr(Activation.RELU.value)
_RELU_SQUARED = tl.constexpr(Activation.RELU_SQUARED.value)
_CLAMPED_SILU = tl.constexpr(Activation.CLAMPED_SILU.value)
_SIGMOID = tl.constexpr(Activation.SIGMOID.value)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_TWICE_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
_QUICK = tl.constexpr(1.702)
_CLAMP = tl.constexpr(7.0)


@triton.jit
def _activate(x: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    if KIND == _RELU:
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == _RELU_SQUARED:
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        y = y * y
    elif KIND == _SIGMOID:
        y = 1.0 / (1.0 + tl.exp(-x))
    elif KIND == _SILU:
        y = x / (1.0 + tl.exp(-x))
    elif KIND == _GELU:
        y = x * 0.5 * (1.0 + tl.erf(x * _SQRT_HALF))
    elif KIND == _GELU_TANH:
        y = x / (1.0 + tl.exp((x + 0.044715 * x * x * x) * -_TWICE_SQRT_2_OVER_PI))
    else:
        y = x / (1.0 + tl.exp(x * -_QUICK))
    return y


@triton.jit
def _gated(x, row, columns, features, KIND: tl.constexpr):
    """Returns act(gate) · up in float32, at some columns of a row."""
    mask = columns < features
    gate = tl.load(x + row * (2 * features) + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * features) + features + columns, mask=mask, other=0.0).to(tl.float32)
    if KIND == _CLAMPED_SILU:
        gate = tl.minimum(gate, _CLAMP, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -_CLAMP, _CLAMP, propagate_nan=tl.PropagateNan.ALL) + 1.0
    return _activate(gate, KIND) * up


@triton.jit
def gated_activation_quantized_kernel(
    x,  # [m, 2 · features]
    q,  # int8 [m, features], or fp8's bytes
    scales,  # float32 [m]
    features,
    KIND: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK columns in a row
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Activates a row twice if it has several blocks: first for the largest magnitude, then for the codes."""
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    fp8: tl.constexpr = q.dtype.element_ty != tl.int8
    value = _gated(x, row, columns, features, KIND).to(x.dtype.element_ty).to(tl.float32)
    greatest, num_nans = tl.max(tl.abs(value)), tl.max((value != value).to(tl.int32))
    for block in tl.static_range(1, BLOCKS):
        at = block * BLOCK + columns
        more = _gated(x, row, at, features, KIND).to(x.dtype.element_ty).to(tl.float32)
        greatest = tl.maximum(greatest, tl.max(tl.abs(more)))
        num_nans += tl.max((more != more).to(tl.int32))
    ratio, scale = row_scales(greatest, num_nans, fp8)
    tl.store(scales + row, scale)
    tl.store(q + row * features + columns, to_codes(value * ratio, fp8), mask=columns < features)
    for block in tl.static_range(1, BLOCKS):
        at = block * BLOCK + columns
        more = _gated(x, row, at, features, KIND).to(x.dtype.element_ty).to(tl.float32)
        tl.store(q + row * features + at, to_codes(more * ratio, fp8), mask=at < features)


@triton.jit
def activation_kernel(x, y, features, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < features
    if GATED:
        value = _gated(x, row, columns, features, KIND)
    else:
        value = _activate(tl.load(x + row * features + columns, mask=mask, other=0.0).to(tl.float32), KIND)
    tl.store(y + row * features + columns, value.to(y.dtype.element_ty), mask=mask)


def activation(x: Tensor, kind: Activation) -> Tensor:
    """Returns act(x). Raises ValueError for a layout that the kernel would misread."""
    if not x.is_contiguous() or kind is Activation.CLAMPED_SILU:
        raise ValueError("an activation needs a contiguous input, and a kind that is not only gated")
    return _launch(x, torch.empty_like(x), kind, gated=False)


def gated_activation(gate_up: Tensor, kind: Activation) -> Tensor:
    """Returns act(gate) · up. Raises ValueError for a layout that the kernel would misread."""
    if not gate_up.is_contiguous() or gate_up.shape[-1] % 2:
        raise ValueError("a gated activation needs a contiguous input with an even last dimension")
    return _launch(gate_up, gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2)), kind, gated=True)


def gated_activation_quantized(gate_up: Tensor, kind: Activation, dtype: torch.dtype) -> QuantizedRows:
    """Returns quantize_rows(gated_activation(gate_up, kind), dtype), in one launch. gate_up: [m, 2 · features]."""
    if gate_up.dim() != 2 or not gate_up.is_contiguous() or gate_up.shape[1] % 2:
        raise ValueError("a gated activation needs a contiguous matrix with an even number of columns")
    m, features = len(gate_up), gate_up.shape[1] // 2
    result = empty_rows(m, features, dtype, gate_up.device)
    if m:
        block, num_warps = _quantized_block(features)
        gated_activation_quantized_kernel[(m,)](
            gate_up, as_bytes(result.values), result.scales, features, KIND=kind.value,
            BLOCKS=triton.cdiv(features, block), BLOCK=block, num_warps=num_warps, **launch_arguments(),
        )  # fmt: skip
    return result


def _quantized_block(features: int) -> tuple[int, int]:
    """Returns the number of columns per block, and the number of warps."""
    block = min(MAX_QUANTIZED_BLOCK, triton.next_power_of_2(features))
    return block, min(16, max(4, block // 512))


def _launch(x: Tensor, y: Tensor, kind: Activation, *, gated: bool) -> Tensor:
    features = y.shape[-1]
    rows = y.numel() // features
    if rows:
        activation_kernel[(rows, triton.cdiv(features, BLOCK))](
            x, y, features, KIND=kind.value, GATED=gated, BLOCK=BLOCK, num_warps=NUM_WARPS, **launch_arguments()
        )
    return y


def variants() -> Iterator[Variant]:
    for kind in Activation:
        for gated in (True, False) if kind is not Activation.CLAMPED_SILU else (True,):
            for dtype in ("bf16", "fp32"):
                yield Variant(
                    f"{kind.name.lower()}{' gated' if gated else ''} {dtype}",
                    activation_kernel,
                    {"x": f"*{dtype}", "y": f"*{dtype}", "features": "i32:16"},
                    {"KIND": kind.value, "GATED": gated, "BLOCK": BLOCK},
                    NUM_WARPS,
                    num_stages=3,
                )
    for codes in ("i8", "u8"):
        for features in (1536, 14336, 28672):
            block, num_warps = _quantized_block(features)
            yield Variant(
                f"silu gated bf16 {features} to {'int8' if codes == 'i8' else 'fp8'}",
                gated_activation_quantized_kernel,
                {"x": "*bf16", "q": f"*{codes}", "scales": "*fp32", "features": "i32:16"},
                {"KIND": Activation.SILU.value, "BLOCKS": triton.cdiv(features, block), "BLOCK": block},
                num_warps,
                num_stages=3,
            )
