"""Decodes the tensors of a GGUF file, whose rows consist of blocks. The results are copies, because the file is mapped
read-only."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray
from torch import Tensor

from services.worker.gguf import GROUP_SIZE
from services.worker.quantization.kinds import SYMMETRIC_ZERO_POINT, Int4Weight, Int8Weight, Weight

_SCALE_BYTES = 2


def decode(data: NDArray[np.generic], kind: GGMLQuantizationType) -> Weight:
    """Decodes a matrix of type `kind` into the weight format that `gguf.FORMATS` names for this type."""
    if kind is GGMLQuantizationType.Q8_0:
        return _decode_q8_0(data)
    if kind is GGMLQuantizationType.Q4_0:
        return _decode_q4_0(data)
    return decode_floats(data, kind)


def decode_floats(data: NDArray[np.generic], kind: GGMLQuantizationType) -> Tensor:
    """Returns floats: F32, F16 and BF16 tensors in their own type, quantized tensors in float32."""
    if kind is GGMLQuantizationType.BF16:
        return torch.from_numpy(data.copy()).view(torch.bfloat16)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return torch.from_numpy(data.copy())
    return torch.from_numpy(quants.dequantize(data, kind))


def _decode_q8_0(data: NDArray[np.generic]) -> Weight:
    """Decodes blocks of a float16 scale and 32 int8 values."""
    scales, values = _split(data, _SCALE_BYTES + GROUP_SIZE)
    return Int8Weight(torch.from_numpy(values).view(torch.int8).flatten(1), scales, quantize_activations=False)


def _decode_q4_0(data: NDArray[np.generic]) -> Weight:
    """Decodes blocks of a float16 scale and 16 bytes. Byte i holds value i in its low half and value 16 + i in its high
    half."""
    scales, halves = _split(data, _SCALE_BYTES + GROUP_SIZE // 2)
    q = np.concatenate((halves & 15, halves >> 4), axis=-1)  # [rows, groups, 32]
    packed = torch.from_numpy(q[..., ::2] | q[..., 1::2] << 4).flatten(1)
    return Int4Weight(packed, scales, torch.full(scales.shape, SYMMETRIC_ZERO_POINT, dtype=torch.uint8))


def _split(data: NDArray[np.generic], block_bytes: int) -> tuple[Tensor, NDArray[np.uint8]]:
    """Splits blocks. Returns their scales [rows, groups], and their other bytes [rows, groups, bytes]."""
    blocks = data.view(np.uint8).reshape(len(data), -1, block_bytes)
    scales = np.ascontiguousarray(blocks[..., :_SCALE_BYTES]).view(np.float16)[..., 0]
    return torch.from_numpy(scales), np.ascontiguousarray(blocks[..., _SCALE_BYTES:])
