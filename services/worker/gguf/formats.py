"""The types of GGUF tensors (ggml's types), and the weight format into which each type is read.

Q8_0 and Q4_0 represent the same numbers as Quire's int8 and int4 formats with groups of 32. So these tensors stay
quantized if the device's operations support int8 or int4. Quire has no formats for the other quantized types, which
have float offsets, five-bit values or nested scales. So these are decoded to floats.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.worker.quantization import DENSE, Int8Format, MatrixFormat, PackedFormat

GROUP_SIZE = 32
FORMATS: Mapping[str, MatrixFormat] = {
    **dict.fromkeys(("F32", "F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), DENSE),
    "Q8_0": Int8Format(quantize_activations=False, group_size=GROUP_SIZE),
    "Q4_0": PackedFormat(4, GROUP_SIZE, symmetric=True),
}
