"""What the formats say of memory without torch agrees with the weights that they read and that operations take."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.triton import quantized_linear
from services.worker.quantization import COMPUTED
from services.worker.quantization.at_load import AT_LOAD
from services.worker.quantization.formats import MatrixFormat
from services.worker.quantization.kinds import QuantizedWeight
from services.worker.quantization.mxfp4 import Mxfp4Format
from tests.unit.worker.quantization.test_published_layouts import FORMATS, golden

# Left out are layers with an order of inputs, or with zero points in 8 bits: config.json does not tell.
PLAIN = [case for case in FORMATS if case not in ("gptq-act-order", "gptq-8", "gptq-8-act-order")]
ALL: dict[str, MatrixFormat] = {
    **FORMATS,
    "mxfp4": Mxfp4Format(),
    **{f"{name} at load": scheme.form for name, scheme in AT_LOAD.items()},
}


def num_bytes(weight: QuantizedWeight) -> int:
    parts = [getattr(weight, field.name) for field in dataclasses.fields(weight)]
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))


@pytest.mark.parametrize("case", PLAIN)
def test_a_published_layer_takes_the_memory_that_its_format_says(case: str) -> None:
    tensors, dtypes = golden(case)
    shape = tensors["expected"].shape
    weight, footprint = FORMATS[case].read(tensors, *shape), FORMATS[case].footprint(*shape)
    assert not isinstance(weight, Tensor)
    assert footprint is not None
    # These layers were packed in float32. Most checkpoints are packed in bfloat16.
    extra = weight.scales.numel() * 2 if case.startswith("packed") and dtypes["weight_scale"] == "F32" else 0
    assert num_bytes(weight) == footprint.num_bytes + extra


@pytest.mark.parametrize("case", ALL)
def test_each_device_computes_with_the_kinds_that_are_said(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = ALL[case]
    tensors = golden(case)[0] if case in PLAIN else {}
    weight = (
        form.read(tensors, *tensors["expected"].shape)
        if tensors
        else form.quantize(torch.randn(64, 128, generator=torch.Generator().manual_seed(0)))
    )
    footprint = form.footprint(*weight.shape)
    assert footprint is not None
    assert not isinstance(weight, Tensor)
    monkeypatch.setattr(quantized_linear, "_multiplies_fp8", lambda _: True)
    assert CPUOps().computes_with(weight) == (footprint.kind in COMPUTED["cpu"].matrices)
    on_gpu = quantized_linear.computes_with(weight, torch.device("cuda"))
    assert on_gpu == (footprint.kind in COMPUTED["cuda"].matrices)


@pytest.mark.parametrize("name", AT_LOAD)
def test_schemes_at_load_make_the_kind_that_they_name(name: str) -> None:
    footprint = AT_LOAD[name].form.footprint(64, 128)
    assert footprint is not None
    assert footprint.kind is AT_LOAD[name].kind
