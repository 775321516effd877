"""A weight in 4-bit integers with a scale and a zero point per group of inputs. AWQ (Lin et al., 2023), GPTQ
(Frantar et al., 2022) and GGUF's Q4_0 share this form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.worker.quantization.kinds.input_order import in_order_of_inputs, is_same_order

SYMMETRIC_ZERO_POINT = 8


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """weight[o, i(k)] = (q[o, k] - zero_points[o, k // group_size]) · scales[o, k // group_size]

    q[o, k] are unsigned 4-bit integers, two per byte, the even k in the low half. Column k belongs to input i(k) =
    input_order[k], or to input k if `input_order` is None (see input_order.py).
    """

    packed: Tensor  # uint8 [out_features, in_features / 2], contiguous
    scales: Tensor  # float32, float16 or bfloat16 [out_features, groups]; each group has in_features / groups columns
    zero_points: Tensor  # uint8 [out_features, groups], 0 to 15; always 8 if the quantization is symmetric
    input_order: Tensor | None = None  # int32 [in_features], a permutation

    @property
    def shape(self) -> tuple[int, int]:
        rows, half = self.packed.shape
        return rows, 2 * half

    @property
    def group_size(self) -> int:
        return self.shape[1] // self.scales.shape[1]

    def dequantize(self) -> Tensor:
        """Returns the weight in float32 [out_features, in_features]; each product is rounded once."""
        q = unpack_nibbles(self.packed).view(*self.scales.shape, self.group_size).float()
        weight = ((q - self.zero_points[:, :, None].float()) * self.scales[:, :, None].float()).flatten(1)
        return in_order_of_inputs(weight, self.input_order)

    def select_rows(self, ids: Tensor) -> Int4Weight:
        """Returns rows (outputs) `ids` of the weight. ids: int64 [n]."""
        return replace(self, packed=self.packed[ids], scales=self.scales[ids], zero_points=self.zero_points[ids])

    def to(self, device: torch.device) -> Int4Weight:
        order = None if self.input_order is None else self.input_order.to(device)
        return Int4Weight(self.packed.to(device), self.scales.to(device), self.zero_points.to(device), order)

    @staticmethod
    def quantize(weight: Tensor, group_size: int | None = None) -> Int4Weight:
        """Quantizes a matrix of any float type. For each group, takes 16 evenly spaced values, whose range includes 0
        and all numbers of the group, and rounds each number to the nearest value. Scales have the matrix's type. AWQ
        and GPTQ choose better values; this method is for dummy weights and comparisons."""
        groups = weight.reshape(len(weight), -1, group_size or weight.shape[1])
        low, high = groups.amin(-1).clamp(max=0).float(), groups.amax(-1).clamp(min=0).float()
        scales = ((high - low) / 15).clamp(min=1e-6).to(weight.dtype)
        step = scales.float()
        zero_points = (-low / step).round().clamp(0, 15)
        q = (groups / step[:, :, None]).round_().add_(zero_points[:, :, None]).clamp_(0, 15)
        return Int4Weight(pack_nibbles(q.flatten(1).to(torch.uint8)), scales, zero_points.to(torch.uint8))

    @staticmethod
    def join(weights: Sequence[Int4Weight]) -> Int4Weight | None:
        """Joins weights that multiply the same input, and returns the joined weight. Returns None if the weights differ
        in group size or in `input_order`."""
        first = weights[0]
        if any(
            weight.group_size != first.group_size or not is_same_order(weight.input_order, first.input_order)
            for weight in weights
        ):
            return None
        return Int4Weight(
            torch.cat([weight.packed for weight in weights]),
            torch.cat([weight.scales for weight in weights]),
            torch.cat([weight.zero_points for weight in weights]),
            first.input_order,
        )


def pack_nibbles(q: Tensor) -> Tensor:
    """uint8 [rows, columns], values below 16 -> uint8 [rows, columns / 2], even columns in the low half of a byte."""
    return q[:, ::2] | q[:, 1::2] << 4


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8 [rows, n] -> uint8 [rows, 2 n]"""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
