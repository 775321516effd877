"""A weight in 8-bit floating point, OCP's E4M3 (Micikevicius et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.worker.quantization.kinds.rows import quantize_rows_fp8


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight in fp8 with one scale per output: weight[o, i] = values[o, i] · scales[o].

    With `quantize_activations` (W8A8), `quantize_rows_fp8` first quantizes each row x of the input: x ≈ q · x_scale.

        y[o] = Σ_i q[i] · values[o, i] · x_scale · scales[o]        sums in float32

    Without `quantize_activations`, x is multiplied as it is. If a checkpoint has one scale per tensor, the scale is
    repeated for every output.
    """

    values: Tensor  # float8_e4m3fn [out_features, in_features], contiguous
    scales: Tensor  # float32 [out_features]
    quantize_activations: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def dequantize(self) -> Tensor:
        """Returns the weight in float32 [out_features, in_features]; each product is rounded once."""
        return self.values.float() * self.scales[:, None]

    def select_rows(self, ids: Tensor) -> Fp8Weight:
        """Returns rows (outputs) `ids` of the weight. ids: int64 [n]."""
        # The values are indexed as bytes, because torch cannot index float8 on every device.
        values = self.values.view(torch.uint8)[ids].view(torch.float8_e4m3fn)
        return replace(self, values=values, scales=self.scales[ids])

    def to(self, device: torch.device) -> Fp8Weight:
        return replace(self, values=self.values.to(device), scales=self.scales.to(device))

    @staticmethod
    def quantize(weight: Tensor, quantize_activations: bool = True) -> Fp8Weight:
        """Quantizes a matrix [out_features, in_features] of any float type, with one scale per output."""
        return Fp8Weight(*quantize_rows_fp8(weight), quantize_activations)

    @staticmethod
    def join(weights: Sequence[Fp8Weight]) -> Fp8Weight | None:
        """Joins weights that have the same input, and returns them as one weight. Returns None if only some of them
        quantize the input."""
        if len({weight.quantize_activations for weight in weights}) > 1:
            return None
        values = torch.cat([weight.values.view(torch.uint8) for weight in weights]).view(torch.float8_e4m3fn)
        return Fp8Weight(values, torch.cat([weight.scales for weight in weights]), weights[0].quantize_activations)
