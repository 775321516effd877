"""Makes checkpoints.safetensors beside this file: small layers as published tools store and dequantize them.

    python make.py AUTOAWQ AUTOGPTQ

with compressed-tensors 0.20.0 installed, and the unpacked sources of autoawq 0.2.9 and auto-gptq 0.7.1 (packages that
import far more than the two modules that are run here). Every tensor is called CASE/NAME; CASE/expected is the weight
that the tool makes of the others, in float32 [out_features, in_features].
"""

from __future__ import annotations

import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from torch import Tensor, nn

COLUMNS, GROUP = 32, 16
GROUPS = COLUMNS // GROUP
COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "int8-channel": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "packed-int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}),
    "packed-int4-asymmetric": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False},
    ),
    "packed-int8": ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
}

# Made after the other cases, which depend on the order.
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8-block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, GROUP]},
    ),
    "int8-asymmetric": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}),
    "packed-int8-asymmetric": (
        "pack-quantized",
        {"num_bits": 8, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False},
    ),
}


def compressed_tensors(name: str, generator: torch.Generator) -> dict[str, Tensor]:
    form, arguments = (COMPRESSED | FURTHER)[name]
    weight = torch.randn(16, COLUMNS, generator=generator)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    shape = {"tensor": (1,), "channel": (16, 1), "group": (16, GROUPS), "block": (2, GROUPS)}[arguments["strategy"]]
    largest = {"float": 448.0, "int": 2.0 ** (arguments["num_bits"] - 1)}[arguments["type"]]
    state = {
        "weight": weight,
        "weight_scale": weight.abs().max() / largest * (0.5 + torch.rand(shape, generator=generator)),
        "weight_zero_point": torch.zeros(shape, dtype=torch.int8),
    }
    if not arguments.get("symmetric", True):
        state["weight_zero_point"] = torch.randint(-8, 8, shape, generator=generator, dtype=torch.int8)
    compressor: Any = BaseCompressor.get_value_from_registry(form)
    stored: dict[str, Tensor] = compressor.compress(state, scheme)
    return stored | {"expected": compressor.decompress(stored, scheme)["weight"].float()}


def awq(generator: torch.Generator) -> dict[str, Tensor]:
    gemm = import_module("awq.modules.linear.gemm")
    linear, scales, zeros = random_layer(generator)
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, GROUP, False, scales.t(), zeros.t())
    stored = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    dequantize = import_module("awq.utils.packing_utils").dequantize_gemm
    expected = dequantize(layer.qweight, layer.qzeros, layer.scales.float(), 4, GROUP)
    return stored | {"expected": expected.t()}


def awq_gemv(generator: torch.Generator) -> dict[str, Tensor]:
    """In groups of 32, the smallest of this version. The tool dequantizes on GPUs only, so expected is the layer."""
    gemv = import_module("awq.modules.linear.gemv")
    linear, scales, zeros = random_layer(generator, columns=64, group=32)
    layer = gemv.WQLinear_GEMV.from_linear(linear, 4, 32, False, scales, zeros)
    return {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")} | {"expected": linear.weight.data}


def gptq(generator: torch.Generator, act_order: bool, bits: int = 4) -> dict[str, Tensor]:
    layer = import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear(bits, GROUP, COLUMNS, 32, False)
    linear, scales, zeros = random_layer(generator, bits)
    group_of_input = torch.arange(COLUMNS, dtype=torch.int32) // GROUP
    if act_order:
        group_of_input = group_of_input[torch.randperm(COLUMNS, generator=generator)]
    layer.pack(linear, scales, zeros.clamp(min=1), group_of_input)
    layer.scales = layer.scales.half().float()
    stored = {name: getattr(layer, name) for name in ("qweight", "qzeros", "g_idx")}
    return stored | {"scales": layer.scales.half(), "expected": layer(torch.eye(COLUMNS)).t()}


def random_layer(
    generator: torch.Generator, bits: int = 4, columns: int = COLUMNS, group: int = GROUP
) -> tuple[nn.Linear, Tensor, Tensor]:
    """A layer of 32 outputs whose weights fit `bits`, with its scales and zero points [32, groups]."""
    linear, groups = nn.Linear(columns, 32, bias=False), columns // group
    scales = (0.02 + 0.1 * torch.rand(32, groups, generator=generator)).half().float()
    zeros = torch.randint(0, 1 << bits, (32, groups), generator=generator).float()
    q = torch.randint(0, 1 << bits, (32, columns), generator=generator).float()
    linear.weight.data = (q - zeros.repeat_interleave(group, 1)) * scales.repeat_interleave(group, 1)
    return linear, scales, zeros


def bare_package(name: str, directory: Path) -> None:
    """Makes `name`'s modules importable without running its `__init__`."""
    module = types.ModuleType(name)
    module.__path__ = [str(directory)]
    sys.modules[name] = module


def main() -> None:
    autoawq, autogptq = map(Path, sys.argv[1:])
    for root, packages in ((autoawq, ("awq", "awq.modules", "awq.modules.linear")), (autogptq, ("auto_gptq",))):
        for name in packages:
            bare_package(name, root / name.replace(".", "/"))
    for name in ("auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
        bare_package(name, autogptq / name.replace(".", "/"))
    device = types.ModuleType("awq.utils.utils")
    device.get_best_device = lambda: "cpu"  # type: ignore[attr-defined]
    sys.modules[device.__name__] = device
    generator = torch.Generator().manual_seed(1)
    cases = {name: compressed_tensors(name, generator) for name in COMPRESSED}
    cases |= {"awq": awq(generator), "gptq": gptq(generator, False), "gptq-act-order": gptq(generator, True)}
    cases |= {name: compressed_tensors(name, generator) for name in FURTHER}
    cases |= {f"gptq-{bits}": gptq(generator, False, bits) for bits in (2, 3, 8)}
    cases |= {"gptq-8-act-order": gptq(generator, True, 8), "awq-gemv": awq_gemv(generator)}
    save_file(
        {f"{case}/{name}": tensor.contiguous() for case, tensors in cases.items() for name, tensor in tensors.items()},
        Path(__file__).parent / "checkpoints.safetensors",
    )


if __name__ == "__main__":
    main()
