"""fp8 products by cuBLAS and CUTLASS, behind `torch._scaled_mm` with a scale per row and per output, for many rows.

    y[m, n] = (Σ_k q[m, k] · v[n, k]) · x_scale[m] · scale[n] + b[n]

as `eight_bit.py` computes it, which is the fallback. The rule, more rows than `eight_bit.py` has in its tiles for some,
is unmeasured: few rows are bound by memory, where ours splits K by the weight's shape; many are where tuned libraries
lead. Sums are kept in float32 proper (`use_fast_accum` off), as ours are. torch serves it from compute capability 8.9
on, with bfloat16 results and with shapes in multiples of 16. Not batch-invariant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.worker.ops.triton.eight_bit import QUANTIZED


def serves(q: Tensor, values: Tensor, dtype: torch.dtype) -> bool:
    """Whether this is faster, by the rule, and there at all. `dtype`: of the result."""
    (m, k), n = q.shape, len(values)
    if q.dtype is not torch.float8_e4m3fn or dtype is not torch.bfloat16 or m <= QUANTIZED.some.rows:
        return False
    if k % 16 or n % 16 or not q.is_cuda or not hasattr(torch, "_scaled_mm"):
        return False
    return torch.cuda.get_device_capability(q.device) >= (8, 9)


def scaled_mm(
    q: Tensor, values: Tensor, row_scales: Tensor, out_scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """fp8 [m, k] and [n, k], float32 [m] and [1, n], [n] in `dtype` -> [m, n]."""
    result: Tensor = torch._scaled_mm(
        q, values.t(), scale_a=row_scales[:, None], scale_b=out_scales, bias=bias, out_dtype=dtype
    )
    return result
