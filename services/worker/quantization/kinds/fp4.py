"""A weight in MXFP4, the 4-bit floating point with shared scales of the OCP Microscaling Formats specification 1.0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.worker.quantization.kinds.int4 import pack_nibbles, unpack_nibbles

# Values of E2M1 (section 5.3.3) by code: a sign bit, then two bits of exponent and one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
FP4_GROUP_SIZE = 32
_E8M0_BIAS, _E8M0_NAN = 127, 255
_LARGEST_EXPONENT = 2  # of an E2M1 value


@dataclass(frozen=True, slots=True)
class Fp4Weight:
    """weight[o, i] = E2M1[codes[o, i]] · 2 ** (exponents[o, i // 32] - 127); an exponent of 255 stands for NaN."""

    packed: Tensor  # uint8 [out_features, in_features / 2], contiguous: codes of 4 bits, the even i in the low half
    exponents: Tensor  # uint8 [out_features, in_features / 32], E8M0 (section 5.4.1)

    @property
    def shape(self) -> tuple[int, int]:
        rows, half = self.packed.shape
        return rows, 2 * half

    @property
    def group_size(self) -> int:
        return FP4_GROUP_SIZE

    @property
    def scales(self) -> Tensor:
        """float32 [out_features, groups], powers of two, exact."""
        # A float64 of these bits is the power: its exponent has 11 bits, a bias of 1023, and 52 bits below it.
        powers = (self.exponents.long() - _E8M0_BIAS + 1023 << 52).view(torch.float64).float()
        return powers.masked_fill_(self.exponents == _E8M0_NAN, float("nan"))

    def dequantize(self) -> Tensor:
        """Returns the weight in float32 [out_features, in_features], exact."""
        table = torch.tensor(E2M1, device=self.packed.device)
        values = table[unpack_nibbles(self.packed).long()].view(*self.exponents.shape, FP4_GROUP_SIZE)
        return (values * self.scales[:, :, None]).flatten(1)

    def select_rows(self, ids: Tensor) -> Fp4Weight:
        """Returns rows (outputs) `ids` of the weight. ids: int64 [n]."""
        return replace(self, packed=self.packed[ids], exponents=self.exponents[ids])

    def to(self, device: torch.device) -> Fp4Weight:
        return Fp4Weight(self.packed.to(device), self.exponents.to(device))

    @staticmethod
    def quantize(weight: Tensor) -> Fp4Weight:
        """Quantizes a matrix of any float type by section 6.3: the exponent of a group is that of its largest
        magnitude, less that of E2M1's largest value; values are rounded to the nearest, halves towards zero."""
        groups = weight.float().contiguous().view(len(weight), -1, FP4_GROUP_SIZE)
        largest = torch.frexp(groups.abs().amax(-1)).exponent - 1
        exponents = (largest - _LARGEST_EXPONENT + _E8M0_BIAS).clamp(0, _E8M0_NAN - 1)
        scaled = torch.ldexp(groups, (_E8M0_BIAS - exponents)[:, :, None])
        values = torch.tensor(E2M1[: len(E2M1) // 2], device=weight.device)
        codes = torch.bucketize(scaled.abs(), (values[1:] + values[:-1]) / 2) | (scaled < 0).long() << 3
        return Fp4Weight(pack_nibbles(codes.flatten(1).to(torch.uint8)), exponents.to(torch.uint8))

    @staticmethod
    def join(weights: Sequence[Fp4Weight]) -> Fp4Weight:
        """Returns one weight with the rows of all `weights`, which are multiplied by the same input."""
        return Fp4Weight(
            torch.cat([weight.packed for weight in weights]), torch.cat([weight.exponents for weight in weights])
        )
