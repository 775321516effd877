"""Layers that published tools have stored are read as the numbers that those tools make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from services.worker.quantization.awq import AWQFormat, AWQGemvFormat
from services.worker.quantization.formats import Fp8Format, Int8Format, MatrixFormat
from services.worker.quantization.fp8_blocks import Fp8BlockFormat
from services.worker.quantization.gptq import GPTQFormat
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.pack_quantized import PackedFormat

GOLDEN = Path(__file__).parent / "golden" / "checkpoints.safetensors"  # see golden/make.py
GROUP = 16
UNUSED = ("expected", "weight_shape", "weight_zero_point")

FORMATS: dict[str, MatrixFormat] = {
    "fp8-channel": Fp8Format(),
    "fp8-tensor": Fp8Format(),
    "int8-channel": Int8Format(quantize_activations=True),
    "packed-int4": PackedFormat(4, GROUP, symmetric=True),
    "packed-int4-asymmetric": PackedFormat(4, GROUP, symmetric=False),
    "packed-int8": PackedFormat(8, None, symmetric=True),
    "awq": AWQFormat(GROUP),
    "gptq": GPTQFormat(GROUP),
    "gptq-act-order": GPTQFormat(GROUP),
    "fp8-block": Fp8BlockFormat(8, GROUP, "weight_scale"),
    "int8-asymmetric": Int8Format(quantize_activations=False, symmetric=False),
    "packed-int8-asymmetric": PackedFormat(8, GROUP, symmetric=False),
    "gptq-2": GPTQFormat(GROUP, bits=2),
    "gptq-3": GPTQFormat(GROUP, bits=3),
    "gptq-8": GPTQFormat(GROUP, bits=8),
    "gptq-8-act-order": GPTQFormat(GROUP, bits=8),
    "awq-gemv": AWQGemvFormat(32),
}


def golden(case: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and their types, by the last part of their names."""
    with safe_open(GOLDEN, "pt") as file:
        names = [name for name in file.keys() if name.startswith(f"{case}/")]  # noqa: SIM118 - no mapping
        return (
            {name.split("/")[1]: file.get_tensor(name) for name in names},
            {name.split("/")[1]: file.get_slice(name).get_dtype() for name in names},
        )


@pytest.mark.parametrize("case", FORMATS)
def test_a_published_layer_has_its_numbers(case: str) -> None:
    tensors, _ = golden(case)
    expected = tensors["expected"]
    weight = FORMATS[case].read(tensors, *expected.shape)
    assert not isinstance(weight, Tensor)
    assert weight.shape == expected.shape
    assert torch.equal(weight.dequantize(), expected)


@pytest.mark.parametrize("case", FORMATS)
def test_what_a_format_asks_for_is_what_the_tool_has_stored(case: str) -> None:
    tensors, dtypes = golden(case)
    stored = FORMATS[case].stored(*tensors["expected"].shape)
    needed = {name for name, tensor in stored.items() if tensor.required}
    assert needed <= tensors.keys() <= stored.keys() | set(UNUSED)
    for name in tensors.keys() & stored.keys():
        assert tuple(tensors[name].shape) in stored[name].shapes
        assert dtypes[name] in stored[name].dtypes


def test_act_order_is_kept_as_an_order_of_inputs_and_any_other_g_idx_is_not() -> None:
    in_order = GPTQFormat(GROUP).read(golden("gptq")[0], 32, 32)
    reordered = GPTQFormat(GROUP).read(golden("gptq-act-order")[0], 32, 32)
    assert isinstance(in_order, Int4Weight)
    assert isinstance(reordered, Int4Weight)
    assert in_order.input_order is None
    assert reordered.input_order is not None
    assert sorted(reordered.input_order.tolist()) == list(range(32))


def test_zero_points_of_gptq_v2_are_stored_as_they_are() -> None:
    tensors, _ = golden("gptq")
    one_more = tensors | {"qzeros": tensors["qzeros"] + 0x11111111}
    weight = GPTQFormat(GROUP, zero_points_less_one=False).read(one_more, 32, 32)
    assert isinstance(weight, Int4Weight)
    assert torch.equal(weight.dequantize(), tensors["expected"])


def test_a_zero_point_of_nothing_wraps_around_in_gptq_v1() -> None:
    tensors, _ = golden("gptq")
    weight = GPTQFormat(GROUP).read(tensors | {"qzeros": torch.full((2, 4), -1, dtype=torch.int32)}, 32, 32)
    assert isinstance(weight, Int4Weight)
    assert not weight.zero_points.any()
