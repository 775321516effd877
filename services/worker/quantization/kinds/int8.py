"""A weight in 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.worker.quantization.kinds.input_order import in_order_of_inputs, is_same_order
from services.worker.quantization.kinds.rows import quantize_rows_int8


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """weight[o, i(k)] = (values[o, k] - zero_points[o, k // group_size]) · scales[o, k // group_size]

    Most weights are symmetric: `zero_points` is None, and they are 0. Column k belongs to input i(k) = input_order[k],
    or to input k if `input_order` is None (see input_order.py).

    With `quantize_activations` (W8A8) there is one group per output, and no zero point or order. `quantize_rows_int8`
    first quantizes each row x of the input: x ≈ q · x_scale.

        y[o] = (Σ_i q[i] · values[o, i]) · x_scale · scales[o, 0]        the sum exact, in int32; products in float32

    Without `quantize_activations`, x is multiplied as it is.
    """

    values: Tensor  # int8 [out_features, in_features], contiguous
    scales: Tensor  # float32, float16 or bfloat16 [out_features, groups]; each group has in_features / groups inputs
    quantize_activations: bool
    zero_points: Tensor | None = None  # int8 [out_features, groups]
    input_order: Tensor | None = None  # int32 [in_features], a permutation

    def __post_init__(self) -> None:
        is_plain = self.scales.shape[1] == 1 and self.zero_points is None and self.input_order is None
        if self.quantize_activations and not is_plain:
            raise ValueError("quantized activations need one scale per output, and no zero point or order")

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
        if self.zero_points is not None:
            groups = groups - self.zero_points[:, :, None].float()
        return in_order_of_inputs((groups * self.scales[:, :, None].float()).flatten(1), self.input_order)

    def select_rows(self, ids: Tensor) -> Int8Weight:
        """Returns rows (outputs) `ids` of the weight. ids: int64 [n]."""
        zero_points = None if self.zero_points is None else self.zero_points[ids]
        return replace(self, values=self.values[ids], scales=self.scales[ids], zero_points=zero_points)

    def to(self, device: torch.device) -> Int8Weight:
        zero_points = None if self.zero_points is None else self.zero_points.to(device)
        order = None if self.input_order is None else self.input_order.to(device)
        return Int8Weight(self.values.to(device), self.scales.to(device), self.quantize_activations, zero_points, order)

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
        differ in group size or in `input_order`, or if only some of them quantize the input."""
        first = weights[0]
        if len({(weight.quantize_activations, weight.group_size) for weight in weights}) > 1 or not all(
            is_same_order(weight.input_order, first.input_order) for weight in weights
        ):
            return None
        zero_points = None
        if any(weight.zero_points is not None for weight in weights):
            zero_points = torch.cat([weight._some_zero_points() for weight in weights])
        return Int8Weight(
            torch.cat([weight.values for weight in weights]),
            torch.cat([weight.scales for weight in weights]),
            first.quantize_activations,
            zero_points,
            first.input_order,
        )

    def _some_zero_points(self) -> Tensor:
        if self.zero_points is not None:
            return self.zero_points
        return torch.zeros(self.scales.shape, dtype=torch.int8, device=self.scales.device)
