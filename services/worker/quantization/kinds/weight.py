"""A matrix in the form that operations take: floats, or one of the quantized kinds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.quantization.kinds.fp4 import Fp4Weight
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.fp8_blocks import Fp8BlockWeight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight

QuantizedWeight = Fp8Weight | Fp8BlockWeight | Int8Weight | Int4Weight | Fp4Weight
Weight = Tensor | QuantizedWeight  # [out_features, in_features]


def join(weights: Sequence[Weight]) -> Weight | None:
    """Joins weights that multiply the same input, along the outputs and in the given order, and returns the joined
    weight. Returns None if the weights are of different kinds, or if their kind cannot join them."""
    if len(weights) == 1:
        return weights[0]
    tensors = [weight for weight in weights if isinstance(weight, Tensor)]
    if len(tensors) == len(weights):
        return torch.cat(tensors)
    for kind in (Fp8Weight, Fp8BlockWeight, Int8Weight, Int4Weight, Fp4Weight):
        alike = [weight for weight in weights if isinstance(weight, kind)]
        if len(alike) == len(weights):
            return kind.join(alike)  # type: ignore[arg-type]  # mypy does not see that all are of this kind
    return None
