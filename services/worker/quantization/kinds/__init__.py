"""The kinds of quantized weight in memory: `fp8.py`, `int8.py`, `int4.py` and `fp4.py`. `weight.py` joins weights of
any kind.

This package is imported separately from `quantization`, because this package needs torch, and the command line uses
`quantization` without torch.
"""

from services.worker.quantization.kinds.fp4 import E2M1, Fp4Weight
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import SYMMETRIC_ZERO_POINT, Int4Weight, pack_nibbles, unpack_nibbles
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.rows import FLOOR, FP8_MAX, INT8_MAX, quantize_rows_fp8, quantize_rows_int8
from services.worker.quantization.kinds.weight import QuantizedWeight, Weight, join

__all__ = [
    "E2M1",
    "FLOOR",
    "FP8_MAX",
    "INT8_MAX",
    "SYMMETRIC_ZERO_POINT",
    "Fp4Weight",
    "Fp8Weight",
    "Int4Weight",
    "Int8Weight",
    "QuantizedWeight",
    "Weight",
    "join",
    "pack_nibbles",
    "quantize_rows_fp8",
    "quantize_rows_int8",
    "unpack_nibbles",
]
