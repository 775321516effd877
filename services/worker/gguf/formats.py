"""The types of GGUF's tensors (ggml's), and what each becomes.

Q8_0 and Q4_0 are our int8 and int4 weights in groups of 32, so that they stay as they are where the operations compute
with them. The others have zero points or scales of scales that no kind of ours has: they are read as floats.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.worker.quantization import DENSE, Int8Format, MatrixFormat, PackedInt4Format

GROUP_SIZE = 32
FORMATS: Mapping[str, MatrixFormat] = {
    **dict.fromkeys(("F32", "F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), DENSE),
    "Q8_0": Int8Format(quantize_activations=False, group_size=GROUP_SIZE),
    "Q4_0": PackedInt4Format(GROUP_SIZE, symmetric=True),
}
