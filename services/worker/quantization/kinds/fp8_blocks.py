"""A weight in 8-bit floating point with scales per block, as DeepSeek-V3 publishes it (DeepSeek-AI, 2024, section
3.3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.quantization.kinds.rows import quantize_rows_fp8


@dataclass(frozen=True, slots=True)
class Fp8BlockWeight:
    """weight[o, i] = values[o, i] · scales[o, i // group_size]

    The last group of an output can have fewer inputs. Checkpoints have one scale per block of several outputs. The
    scale is repeated for every output, so that projections can be joined wherever their blocks begin.
    """

    values: Tensor  # float8_e4m3fn [out_features, in_features], contiguous
    scales: Tensor  # float32 [out_features, groups]
    group_size: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def dequantize(self) -> Tensor:
        """Returns the weight in float32 [out_features, in_features]; each product is rounded once."""
        weight, (rows, columns) = self.values.float(), self.shape
        groups = columns // self.group_size
        whole = groups * self.group_size
        weight[:, :whole].view(rows, groups, self.group_size).mul_(self.scales[:, :groups, None])
        weight[:, whole:].mul_(self.scales[:, groups:])
        return weight

    def select_rows(self, ids: Tensor) -> Fp8BlockWeight:
        """Returns rows (outputs) `ids` of the weight. ids: int64 [n]."""
        # The values are indexed as bytes, because torch cannot index float8 on every device.
        values = self.values.view(torch.uint8)[ids].view(torch.float8_e4m3fn)
        return replace(self, values=values, scales=self.scales[ids])

    def to(self, device: torch.device) -> Fp8BlockWeight:
        return replace(self, values=self.values.to(device), scales=self.scales.to(device))

    @staticmethod
    def quantize(weight: Tensor, group_size: int) -> Fp8BlockWeight:
        """Quantizes a matrix [out_features, in_features] of any float type, with one scale per output and group."""
        rows, columns = weight.shape
        groups = functional.pad(weight, (0, -columns % group_size)).view(rows, -1, group_size)
        values, scales = quantize_rows_fp8(groups)
        return Fp8BlockWeight(values.flatten(1)[:, :columns].contiguous(), scales, group_size)

    @staticmethod
    def join(weights: Sequence[Fp8BlockWeight]) -> Fp8BlockWeight | None:
        """Joins weights that have the same input, and returns them as one weight. Returns None if they differ in group
        size."""
        if len({weight.group_size for weight in weights}) > 1:
            return None
        values = torch.cat([weight.values.view(torch.uint8) for weight in weights]).view(torch.float8_e4m3fn)
        return Fp8BlockWeight(values, torch.cat([weight.scales for weight in weights]), weights[0].group_size)
