"""Gated activations: act(gate) · up, with gate the first and up the second half of the last dimension.

    silu(g) = g · σ(g)                                          (Elfwing et al., 2017)
    gelu(g) = g · (1 + erf(g / √2)) / 2                         (Hendrycks and Gimpel, 2016)
    gelu_tanh(g) = g · (1 + tanh(√(2/π) · (g + 0.044715 g³))) / 2 = g · σ(2 √(2/π) · (g + 0.044715 g³))

The last equality holds because (1 + tanh z) / 2 = σ(2z). σ(z) is computed as 1 / (1 + exp(-z)), which is also correct
where exp overflows to infinity. The kernel computes in float32 and rounds once.
[num_tokens, 2 · features] -> [num_tokens, features], both contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.variant import Variant

BLOCK = 1024
NUM_WARPS = 4
SILU, GELU, GELU_TANH = 0, 1, 2

_GELU = tl.constexpr(GELU)
_SILU = tl.constexpr(SILU)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_TWICE_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)


@triton.jit
def gated_kernel(gate_up, y, features, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < features
    gate = tl.load(gate_up + row * (2 * features) + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * features) + features + columns, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == _SILU:
        share = 1.0 / (1.0 + tl.exp(-gate))
    elif ACTIVATION == _GELU:
        share = 0.5 * (1.0 + tl.erf(gate * _SQRT_HALF))
    else:
        share = 1.0 / (1.0 + tl.exp((gate + 0.044715 * gate * gate * gate) * -_TWICE_SQRT_2_OVER_PI))
    tl.store(y + row * features + columns, (gate * share * up).to(y.dtype.element_ty), mask=mask)


def gated(gate_up: Tensor, activation: int) -> Tensor:
    """Returns act(gate) · up. Raises ValueError for a layout that the kernel would misread."""
    if not gate_up.is_contiguous() or gate_up.shape[-1] % 2:
        raise ValueError("a gated activation needs a contiguous input with an even last dimension")
    features = gate_up.shape[-1] // 2
    y = torch.empty((*gate_up.shape[:-1], features), dtype=gate_up.dtype, device=gate_up.device)
    rows = y.numel() // features
    if rows:
        gated_kernel[(rows, triton.cdiv(features, BLOCK))](
            gate_up, y, features, ACTIVATION=activation, BLOCK=BLOCK, num_warps=NUM_WARPS
        )
    return y


def variants() -> Iterator[Variant]:
    for name, activation in (("silu_mul", SILU), ("gelu_mul", GELU), ("gelu_tanh_mul", GELU_TANH)):
        for dtype in ("bf16", "fp32"):
            yield Variant(
                f"{name} {dtype}",
                gated_kernel,
                {"gate_up": f"*{dtype}", "y": f"*{dtype}", "features": "i32:16"},
                {"ACTIVATION": activation, "BLOCK": BLOCK},
                NUM_WARPS,
                num_stages=3,
            )
