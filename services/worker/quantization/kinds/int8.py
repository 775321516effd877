"""A weight in 8-bit integers, symmetric: the zero point is 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.worker.quantization.kinds.rows import quantize_rows_int8


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """weight[o, i] = values[o, i] · scales[o, i // group_size]

    With `quantize_activations` (W8A8) there is one group per output. `quantize_rows_int8` first quantizes each row x of
    the input: x ≈ q · x_scale.

        y[o] = (Σ_i q[i] · values[o, i]) · x_scale · scales[o, 0]        the sum exact, in int32; products in float32

    Without `quantize_activations`, x is multiplied as it is.
    """

    values: Tensor  # int8 [out_features, in_features], contiguous
    scales: Tensor  # float32, float16 or bfloat16 [out_features, groups]; each group has in_features / groups inputs
    quantize_activations: bool

    def __post_init__(self) -> None:
        if self.quantize_activations and self.scales.shape[1] != 1:
            raise ValueError("quantized activations need one scale per output")

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def group_size(self) -> int:
        return self.values.shape[1] // self.scales.shape[1]

    def dequantize(self) -> Tensor:
        """Returns the weight in float32 [out_features, in_features]; each product is rounded once."""
        groups = self.values.view(*self.scales.shape, self.group_size).float()
        return (groups * self.scales[:, :, None].float()).flatten(1)

    def select_rows(self, ids: Tensor) -> Int8Weight:
        """Returns rows (outputs) `ids` of the weight. ids: int64 [n]."""
        return replace(self, values=self.values[ids], scales=self.scales[ids])

    def to(self, device: torch.device) -> Int8Weight:
        return replace(self, values=self.values.to(device), scales=self.scales.to(device))

    @staticmethod
    def quantize(weight: Tensor, quantize_activations: bool, group_size: int | None = None) -> Int8Weight:
        """Quantizes a matrix [out_features, in_features] of any float type, with one scale per output, or per group of
        `group_size` inputs of an output."""
        groups = weight.reshape(len(weight), -1, group_size or weight.shape[1])
        values, scales = quantize_rows_int8(groups)
        return Int8Weight(values.flatten(1), scales, quantize_activations)

    @staticmethod
    def join(weights: Sequence[Int8Weight]) -> Int8Weight | None:
        """Returns one weight with the rows of all `weights`, which are multiplied by the same input; None if they
        differ in group size, or if only some of them quantize the input."""
        if len({(weight.quantize_activations, weight.group_size) for weight in weights}) > 1:
            return None
        values = torch.cat([weight.values for weight in weights])
        return Int8Weight(values, torch.cat([weight.scales for weight in weights]), weights[0].quantize_activations)
