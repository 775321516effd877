"""Integers of 2, 3, 4 and 8 bits, packed into 32-bit words, and the weights that they form.

The numbers follow one another from the lowest bits up, and numbers of 3 bits cross from one word into the next. Numbers
of 2 and 3 bits are kept in 4 bits in memory, because operations compute with 4 and 8 bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from services.worker.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.int4 import Int4Weight
    from services.worker.quantization.kinds.int8 import Int8Weight

WORD_BITS = 32


def num_words(count: int, bits: int, method: str) -> int:
    """Returns the number of words that `count` numbers fill. Raises ModelError if they do not fill whole words."""
    if count * bits % WORD_BITS:
        unit = WORD_BITS // math.gcd(WORD_BITS, bits)
        raise ModelError(f"{method} packs numbers of {bits} bits in multiples of {unit}, and {count} is no multiple")
    return count * bits // WORD_BITS


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [n, words] -> uint8 [n, numbers]"""
    import torch

    period = 3 if bits == 3 else 1  # bytes that whole numbers fill
    parts = words.contiguous().view(torch.uint8)
    parts = parts.view(*parts.shape[:-1], -1, period)
    numbers = []
    for start in range(0, 8 * period, bits):
        byte, shift = divmod(start, 8)
        number = parts[..., byte] >> shift
        if shift + bits > 8:
            number = number | parts[..., byte + 1] << (8 - shift)
        numbers.append(number & (1 << bits) - 1)
    return torch.stack(numbers, dim=-1).flatten(1)


def integer_weight(words: Tensor, bits: int, scales: Tensor, zero_points: Tensor | None) -> Int4Weight | Int8Weight:
    """Builds a weight from int32 words [out_features, words]. scales: [out_features, groups]. zero_points: uint8
    [out_features, groups]; None: the middle of the range, such as 8 for 4 bits."""
    import torch

    from services.worker.quantization.kinds.int4 import Int4Weight, pack_nibbles
    from services.worker.quantization.kinds.int8 import Int8Weight

    middle = 1 << (bits - 1)
    if bits == 8:
        values = (words.contiguous().view(torch.uint8) ^ 0x80).view(torch.int8)
        if zero_points is None or bool((zero_points == middle).all()):
            return Int8Weight(values, scales, quantize_activations=False)
        return Int8Weight(values, scales, False, (zero_points ^ 0x80).view(torch.int8))
    if zero_points is None:
        zero_points = torch.full(scales.shape, middle, dtype=torch.uint8, device=scales.device)
    packed = words.contiguous().view(torch.uint8) if bits == 4 else pack_nibbles(unpack(words, bits))
    return Int4Weight(packed, scales, zero_points)


def sort_by_group(weight: Int4Weight | Int8Weight, group_of_input: Tensor) -> Int4Weight | Int8Weight:
    """Returns the weight with its columns sorted by group. `group_of_input` int32 [in_features] assigns a group to each
    column. Raises ModelError if the groups differ in size."""
    from dataclasses import replace

    import torch

    from services.worker.quantization.kinds.int4 import Int4Weight, pack_nibbles, unpack_nibbles

    groups = weight.scales.shape[1]
    is_valid = bool(((group_of_input >= 0) & (group_of_input < groups)).all())
    if not is_valid or set(torch.bincount(group_of_input, minlength=groups).tolist()) != {weight.group_size}:
        raise ModelError(f"g_idx does not assign {weight.group_size} inputs to every group")
    order = torch.argsort(group_of_input, stable=True)
    if bool((order.diff() == 1).all()):
        return weight
    input_order = order.to(torch.int32)
    if isinstance(weight, Int4Weight):
        packed = pack_nibbles(unpack_nibbles(weight.packed)[:, order])
        return replace(weight, packed=packed, input_order=input_order)
    return replace(weight, values=weight.values[:, order], input_order=input_order)


def quantize(weight: Tensor, bits: int, group_size: int | None) -> Int4Weight | Int8Weight:
    """Quantizes a matrix of any float type: to 8 bits, or to 4 bits for fewer."""
    from services.worker.quantization.kinds.int4 import Int4Weight
    from services.worker.quantization.kinds.int8 import Int8Weight

    if bits == 8:
        return Int8Weight.quantize(weight, False, group_size)
    return Int4Weight.quantize(weight, group_size)
