"""Small random checkpoints, quantized and stored as the published methods do, and the same weights in floats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.fp8_blocks import Fp8BlockWeight
from services.worker.quantization.kinds.int4 import Int4Weight, pack_nibbles, unpack_nibbles
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.weight import QuantizedWeight
from tests.unit.worker.tiny_models import save_model

Tensors = dict[str, Tensor]
GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def quantize_checkpoint(
    directory: Path,
    family: str,
    settings: Mapping[str, Any],
    store: Callable[[str, Tensor], tuple[QuantizedWeight, Tensors]],
    dense: tuple[str, ...] = (),
    **overrides: Any,
) -> transformers.PreTrainedModel:
    """Writes a tiny model whose blocks' projections, but for those with a name in `dense`, are stored as `store` says;
    returns transformers' model with the weights that this stands for. `settings`: config.json's quantization_config."""
    model = save_model(directory, family, **overrides)
    file = directory / "model.safetensors"
    tensors, stored, dequantized = load_file(file), {}, {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("_proj") or any(part in layer for part in dense):
            stored[name] = tensor
            continue
        weight, parts = store(layer, tensor)
        dequantized[name] = weight.dequantize()
        stored |= {f"{layer}.{suffix}": part.contiguous() for suffix, part in parts.items()}
    save_file(stored, file)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))
    model.load_state_dict(dequantized, strict=False)
    return model


def fp8_per_output(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = Fp8Weight.quantize(weight, quantize_activations=False)
    return quantized, {"weight": quantized.values, "weight_scale": quantized.scales[:, None]}


def fp8_per_tensor(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    """With the static scale of activations that such checkpoints bring, and that nothing reads."""
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    quantized = Fp8Weight(values, scale.expand(len(weight)), quantize_activations=False)
    return quantized, {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(0.1)}


def fp8_in_blocks(
    outputs: int, inputs: int, scale: str, dtype: torch.dtype = torch.float32
) -> Callable[[str, Tensor], tuple[QuantizedWeight, Tensors]]:
    """With scales of blocks that do not divide the matrices, in the type `dtype`."""

    def store(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
        (rows, columns), values = weight.shape, torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        scales = torch.empty(-(-rows // outputs), -(-columns // inputs), dtype=dtype)
        for row in range(0, rows, outputs):
            for column in range(0, columns, inputs):
                block = weight[row : row + outputs, column : column + inputs]
                place = row // outputs, column // inputs
                scales[place] = block.abs().max() / 448 * 2**0.5  # a power of two can be smaller
                values[row : row + outputs, column : column + inputs] = (block / scales[place].float()).to(values.dtype)
        repeated = scales.float().repeat_interleave(outputs, 0)[:rows]
        return Fp8BlockWeight(values, repeated, inputs), {"weight": values, scale: scales}

    return store


def int8_per_output(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = Int8Weight.quantize(weight, quantize_activations=False)
    return quantized, {"weight": quantized.values, "weight_scale": quantized.scales}


def packed_int8(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = Int8Weight.quantize(weight, False, GROUP)
    words = (quantized.values.int() + 128).to(torch.uint8).view(torch.int32)
    shape = torch.tensor(weight.shape)
    return quantized, {"weight_packed": words, "weight_scale": quantized.scales, "weight_shape": shape}


def asymmetric_int8(weight: Tensor, group: int | None) -> Int8Weight:
    """The same numbers, from values that are all a little higher."""
    symmetric = Int8Weight.quantize(weight * 1.25, False, group)
    values = (symmetric.values.int() * 4 // 5 + 20).to(torch.int8)
    zero_points = torch.full(symmetric.scales.shape, 20, dtype=torch.int8)
    return Int8Weight(values, symmetric.scales, False, zero_points)


def asymmetric_int8_per_output(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = asymmetric_int8(weight, None)
    zero_points = quantized.zero_points
    assert zero_points is not None
    return quantized, {
        "weight": quantized.values,
        "weight_scale": quantized.scales,
        "weight_zero_point": zero_points,
    }


def packed_asymmetric_int8(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = asymmetric_int8(weight, GROUP)
    zero_points = quantized.zero_points
    assert zero_points is not None
    return quantized, {
        "weight_packed": (quantized.values.int() + 128).to(torch.uint8).view(torch.int32),
        "weight_zero_point": (zero_points.int() + 128).to(torch.uint8).t().contiguous().view(torch.int32).t(),
        "weight_scale": quantized.scales,
    }


def packed_int4(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = Int4Weight.quantize(weight, GROUP)
    return quantized, {
        "weight_packed": quantized.packed.view(torch.int32),
        "weight_zero_point": words_of(quantized.zero_points.t()).t(),
        "weight_scale": quantized.scales,
        "weight_shape": torch.tensor(weight.shape),
    }


def awq(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    quantized = half_scales(Int4Weight.quantize(weight, GROUP))
    q, zeros = unpack_nibbles(quantized.packed).t(), quantized.zero_points.t()
    reorder = [8 * word + place for word in range(len(weight) // 8) for place in AWQ_ORDER]
    return quantized, {
        "qweight": words_of(q[:, reorder]),
        "qzeros": words_of(zeros[:, reorder]),
        "scales": quantized.scales.t(),
    }


def awq_gemv(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
    """In groups of 32, whose number is padded to 32."""
    quantized = half_scales(Int4Weight.quantize(weight, 32))
    padding = (0, 32 - quantized.scales.shape[1])
    return quantized, {
        "qweight": quantized.packed.view(torch.int32),
        "qzeros": words_of(functional.pad(quantized.zero_points, padding)),
        "scales": functional.pad(quantized.scales, padding),
    }


def gptq_of_bits(bits: int, act_order: bool = False) -> Callable[[str, Tensor], tuple[QuantizedWeight, Tensors]]:
    """Symmetric, as most checkpoints of other than 4 bits."""

    def store(_: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
        (rows, columns), middle = weight.shape, 1 << (bits - 1)
        group_of_input = torch.arange(columns, dtype=torch.int32) // GROUP
        if act_order:
            group_of_input = group_of_input[torch.randperm(columns, generator=torch.Generator().manual_seed(0))]
        order = torch.argsort(group_of_input, stable=True)
        groups = weight[:, order].view(rows, -1, GROUP)
        scales = (groups.abs().amax(-1) / (middle - 0.5)).half()
        q = (
            (groups / scales.float()[:, :, None])
            .round()
            .add(middle)
            .clamp(0, 2 * middle - 1)
            .to(torch.uint8)
            .flatten(1)
        )
        quantized: QuantizedWeight
        if bits == 8:
            values = (q.to(torch.int16) - 128).to(torch.int8)
            quantized = Int8Weight(values, scales, False, input_order=order.to(torch.int32) if act_order else None)
        else:
            quantized = Int4Weight(pack_nibbles(q), scales, torch.full(scales.shape, middle, dtype=torch.uint8))
        stored = torch.empty_like(q)
        stored[:, order] = q
        zeros = torch.full((scales.shape[1], rows), middle - 1)
        return quantized, {
            "qweight": stream_of(stored, bits).t(),
            "qzeros": stream_of(zeros, bits),
            "scales": scales.t(),
            "g_idx": group_of_input,
        }

    return store


def stream_of(q: Tensor, bits: int) -> Tensor:
    """Numbers of `bits` bits [n, columns] -> int32 [n, columns · bits / 32], the first in the lowest bits."""
    ones_and_zeros = (q.int()[..., None] >> torch.arange(bits) & 1).flatten(1).view(len(q), -1, 8)
    return (ones_and_zeros << torch.arange(8)).sum(-1).to(torch.uint8).view(torch.int32)


def gptq(act_order: str | None) -> Callable[[str, Tensor], tuple[QuantizedWeight, Tensors]]:
    """`act_order`: whether projections of one input have one order of inputs ("alike"), or each its own ("apart")."""

    def store(layer: str, weight: Tensor) -> tuple[QuantizedWeight, Tensors]:
        columns = weight.shape[1]
        group_of_input = torch.arange(columns, dtype=torch.int32) // GROUP
        if act_order:
            seed = sum(map(ord, layer)) if act_order == "apart" else columns
            group_of_input = group_of_input[torch.randperm(columns, generator=torch.Generator().manual_seed(seed))]
        order = torch.argsort(group_of_input, stable=True)
        quantized = half_scales(Int4Weight.quantize(weight[:, order], GROUP))
        quantized = Int4Weight(quantized.packed, quantized.scales, quantized.zero_points, order.to(torch.int32))
        q = torch.empty_like(weight, dtype=torch.uint8)
        q[:, order] = unpack_nibbles(quantized.packed)
        return quantized, {
            "qweight": words_of(q).t(),
            "qzeros": words_of((quantized.zero_points.t() + 15) % 16),
            "scales": quantized.scales.t(),
            "g_idx": group_of_input,
        }

    return store


def half_scales(weight: Int4Weight) -> Int4Weight:
    return Int4Weight(weight.packed, weight.scales.half(), weight.zero_points, weight.input_order)


def words_of(q: Tensor) -> Tensor:
    """uint8 [n, 8 w] below 16 -> int32 [n, w], the first in the lowest bits."""
    return pack_nibbles(q).clone(memory_format=torch.contiguous_format).view(torch.int32)
