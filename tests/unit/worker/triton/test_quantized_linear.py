"""Which quantized weights a GPU takes, how rows of them are read, and when a library multiplies them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton import quantized_linear, scaled_mm
from services.worker.ops.triton.linear import Linear
from services.worker.ops.triton.ops import TritonOps
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.fp8_blocks import Fp8BlockWeight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.weight import Weight
from tests.simulated_gpu import pretend_properties
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.quantization import stored
from tests.unit.worker.tiny_models import make_runner
from tests.unit.worker.triton.quantized import ALL, assert_is_product, exact_product
from tests.unit.worker.triton.random_tensors import draw

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embedding_reads_rows_dequantized(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    weight = ALL[kind](draw(10, 640, dtype=torch.float32, device=device))
    ops = TritonOps(device, dtype)
    ids = torch.tensor([3, 0, 9, 3], device=device)
    assert torch.equal(ops.embedding(ids, ops.linear(weight)), weight.dequantize()[ids].to(dtype))


@pytest.mark.parametrize(("group", "served"), [(None, True), (16, True), (48, True), (8, False)])
def test_groups_that_tensor_cores_take(device: torch.device, group: int | None, served: bool) -> None:
    """Others are read in floats."""
    ops = TritonOps(device, torch.float32)
    matrix = draw(20, 240, dtype=torch.float32, device=device)
    x = draw(3, 240, dtype=torch.float32, device=device, seed=1)
    for weight in (Int4Weight.quantize(matrix, group), Int8Weight.quantize(matrix, False, group)):
        assert ops.computes_with(weight) == served
        if served:
            torch.testing.assert_close(
                ops.linear(weight)(x).double(), exact_product(x, weight, None), rtol=0, atol=1e-4
            )
        else:
            with pytest.raises(TypeError, match=type(weight).__name__):
                ops.linear(weight)


@pytest.mark.parametrize(
    ("capability", "multiplies"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)]
)
def test_where_no_tensor_core_multiplies_fp8_activations_stay_in_floats(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], multiplies: bool
) -> None:
    pretend_properties(monkeypatch, capability)
    matrix = torch.ones(16, 16)
    assert quantized_linear.computes_with(Fp8Weight.quantize(matrix), CUDA) == multiplies
    assert quantized_linear.computes_with(Fp8Weight.quantize(matrix, False), CUDA)
    assert quantized_linear.computes_with(Int8Weight.quantize(matrix, True), CUDA)


def test_what_no_kernel_multiplies_is_read_in_floats(device: torch.device) -> None:
    ops, matrix = TritonOps(device, torch.bfloat16), torch.ones(16, 16)
    int8 = Int8Weight.quantize(matrix, quantize_activations=False)
    assert ops.computes_with(int8)
    zero_points, order = torch.ones(16, 1, dtype=torch.int8), torch.arange(16, dtype=torch.int32)
    for weight in (
        Fp8BlockWeight.quantize(matrix, 16),
        replace(int8, zero_points=zero_points),
        replace(int8, input_order=order),
    ):
        assert not ops.computes_with(weight)
        with pytest.raises(TypeError, match=type(weight).__name__):
            ops.linear(weight)


class OnCuda:
    """As much of a tensor on a GPU as the rule looks at."""

    def __init__(self, rows: int, k: int, dtype: torch.dtype = torch.float8_e4m3fn) -> None:
        self.shape, self.dtype, self.is_cuda, self.device = (rows, k), dtype, True, CUDA

    def __len__(self) -> int:
        return self.shape[0]


@pytest.mark.parametrize(
    ("served", "change"),
    [
        (True, {}), (False, {"rows": 128}), (True, {"rows": 65, "n": 16384}), (False, {"rows": 64, "n": 16384}),
        (False, {"capability": (8, 0)}), (False, {"dtype": torch.float16}), (False, {"kind": torch.int8}),
        (False, {"n": 100}), (False, {"k": 100}), (False, {"missing": True}),
    ],
)  # fmt: skip
def test_when_the_library_multiplies(monkeypatch: pytest.MonkeyPatch, served: bool, change: dict[str, Any]) -> None:
    case: dict[str, Any] = {"rows": 129, "k": 128, "n": 128, "kind": torch.float8_e4m3fn, "capability": (9, 0)}
    case |= {"dtype": torch.bfloat16} | change
    pretend_properties(monkeypatch, case["capability"])
    if change.get("missing"):
        monkeypatch.delattr(torch, "_scaled_mm")
    q: Any = OnCuda(case["rows"], case["k"], case["kind"])
    values: Any = OnCuda(case["n"], case["k"], case["kind"])
    assert scaled_mm.serves(q, values, case["dtype"]) == served


def scaled_mm_in_words(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """What torch documents of row-wise scales, with the layouts that it insists on."""
    assert a.is_contiguous()
    assert b.t().is_contiguous()
    assert (scale_a.shape, scale_b.shape) == ((len(a), 1), (1, b.shape[1]))
    y = a.double() @ b.double() * scale_a * scale_b
    return (y if bias is None else y + bias.double()).to(out_dtype)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_library_computes_what_the_kernel_does(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, batch_invariant: bool
) -> None:
    library = Mock(side_effect=scaled_mm_in_words)
    monkeypatch.setattr(quantized_linear, "serves", lambda *_: True)
    monkeypatch.setattr(torch, "_scaled_mm", library)
    weight = Fp8Weight.quantize(draw(48, 640, dtype=torch.float32, device=device))
    x = draw(70, 640, dtype=torch.float32, device=device, seed=1)
    bias = draw(48, dtype=torch.float32, device=device, seed=2)
    got = TritonOps(device, torch.float32, batch_invariant=batch_invariant).linear(weight, bias)(x)
    assert_is_product(got, x, weight, bias, 1e-5, 1e-4)
    assert library.called != batch_invariant


class Recording(TritonOps):
    """Keeps which kinds of weights it was given."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.kinds: list[str] = []

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        self.kinds.append(type(weight).__name__)
        return super().linear(weight, bias)


FP8 = {"quant_method": "compressed-tensors", "format": "float-quantized"}
INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized"}


def group_of(kind: str, activations: bool) -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": kind, "symmetric": True}
    inputs = {**numbers, "strategy": "token", "dynamic": True} if activations else None
    weights = {**numbers, "strategy": "channel"}
    return {
        "ignore": ["lm_head", "model.embed_tokens"],
        "config_groups": {"a": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": stored.GROUP, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": stored.GROUP, "version": "gemm", "zero_point": True}


@pytest.mark.parametrize(
    ("settings", "store"),
    [
        (FP8 | group_of("float", True), stored.fp8_per_output),
        (FP8 | group_of("float", False), stored.fp8_per_output),
        (INT8 | group_of("int", True), stored.int8_per_output),
        (INT8 | group_of("int", False), stored.int8_per_output),
        (AWQ, stored.awq),
        (GPTQ, stored.gptq("alike")),
    ],
    ids=["fp8", "fp8 weights", "int8", "int8 weights", "awq", "gptq with act-order"],
)
def test_a_quantized_model_s_likeliest_tokens_are_the_reference_s(
    device: torch.device, tmp_path: Path, settings: dict[str, Any], store: Any
) -> None:
    stored.quantize_checkpoint(tmp_path, "Llama", settings, store)
    outputs, taken = [], Recording(device, torch.float32)
    for ops in (taken, ReferenceOps(device, torch.float32)):
        requests = [Request(list(range(5, 22)), 3), Request([7, 8, 9], 3)]
        Driver(make_runner(tmp_path, ops=ops), seed=3, max_chunk=20, idle=0.0).run(*requests)
        assert [request.error for request in requests] == [None, None]
        outputs.append([request.output for request in requests])
    assert outputs[0] == outputs[1]
    assert taken.kinds.count("Tensor") == 2  # embeddings and the output layer
    assert len(set(taken.kinds)) == 2
