"""fp8 products of many rows, with a scale per row and per output, by `torch._scaled_mm` (cuBLAS and CUTLASS).

    y[m, n] = (Σ_k q[m, k] · v[n, k]) · x_scale[m] · scale[n] + b[n]

The kernel in `eight_bit.py` computes the same product, and is used where `serves` returns False. For few rows, a
product is bound by reading the weight, and our kernel splits K to keep all SMs busy; for many rows, tuned libraries are
faster. Sums are in full float32 (`use_fast_accum` is off), as in
our kernel. torch supports these products from compute capability 8.9 on, with bfloat16 results and sizes that are
multiples of 16. The products of `scaled_mm` are not batch-invariant.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Products with fewer rows use `eight_bit.py`. `python -m benchmarks.gpu tiles --quantization fp8` measures both. On an
# H200, 128 rows take 39 us with 28,672 outputs (44 us in `eight_bit.py`), but 42 us with 4,096 outputs (30 us): the
# library does not split K, so few outputs are few programs.
LEAST_ROWS = 65
LEAST_ROWS_OF_FEW_OUTPUTS = 129
FEW_OUTPUTS = 8192


def serves(q: Tensor, values: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether to use `scaled_mm` for this product: torch supports the product, and q has so many rows that
    `scaled_mm` is probably faster. `dtype`: type of the result."""
    (m, k), n = q.shape, len(values)
    if q.dtype is not torch.float8_e4m3fn or dtype is not torch.bfloat16:
        return False
    if m < (LEAST_ROWS_OF_FEW_OUTPUTS if n <= FEW_OUTPUTS else LEAST_ROWS):
        return False
    if k % 16 or n % 16 or not q.is_cuda or not hasattr(torch, "_scaled_mm"):
        return False
    return torch.cuda.get_device_capability(q.device) >= (8, 9)


def scaled_mm(
    q: Tensor, values: Tensor, row_scales: Tensor, out_scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Returns y [m, n] in `dtype`. q [m, k] and values [n, k]: fp8. row_scales [m] and out_scales [1, n]: float32. bias
    [n]: in `dtype`."""
    result: Tensor = torch._scaled_mm(
        q, values.t(), scale_a=row_scales[:, None], scale_b=out_scales, bias=bias, out_dtype=dtype
    )
    return result
