"""Layers whose norms and activations quantize: the bits of one operation after the other, in fewer launches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.models.decoders.llama import Llama
from services.worker.ops.interface import Layer, RunLayers
from services.worker.ops.triton import quantized_layers, quantized_linear
from services.worker.ops.triton.linear import Linear
from services.worker.ops.triton.ops import TritonOps
from services.worker.ops.triton.quantize_rows import QuantizedRows, quantize_rows
from services.worker.ops.triton.quantized_layers import QuantizedLayers
from services.worker.plan.sampling_params import SamplingParams
from services.worker.quantization.kinds import Fp8Weight, Int8Weight
from services.worker.quantization.kinds.weight import QuantizedWeight, Weight
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_decoder, make_runner, save_model


class InBytes(TritonOps):
    """Multiplies by weights of 8 bits."""

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        return Int8Weight.quantize(weight, quantize_activations=True)

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        assert isinstance(weight, Tensor)
        return super().linear(self.quantize(weight), bias)


class InFp8(InBytes):
    def quantize(self, weight: Tensor) -> QuantizedWeight:
        return Fp8Weight.quantize(weight, quantize_activations=True)


class OneByOne:
    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        return None


class InBytesOneByOne(OneByOne, InBytes):
    pass


class InFp8OneByOne(OneByOne, InFp8):
    pass


@pytest.mark.parametrize(
    ("family", "fused", "one_by_one"),
    [
        pytest.param("Llama", InBytes, InBytesOneByOne, marks=pytest.mark.thorough),
        ("Qwen3", InFp8, InFp8OneByOne),
    ],
)
def test_logprobs_are_the_same_bits(
    device: torch.device, tmp_path: Path, family: str, fused: type[InBytes], one_by_one: type[InBytes]
) -> None:
    """Mixed batches, some of whose rows are not sampled. A GPU may add up norms in another order: see
    `rms_norm.py`."""
    save_model(tmp_path, family, num_hidden_layers=2)
    prompts = [[5], list(range(3, 23))]
    seen = []
    for kind in (fused, one_by_one):
        requests = [Request(prompt, 3, SamplingParams(temperature=0.0, logprobs=5)) for prompt in prompts]
        runner = make_runner(tmp_path, ops=kind(device, torch.float32))
        Driver(runner, seed=3, max_chunk=16).run(*requests)
        seen.append([(request.output, request.logprobs) for request in requests])
    if device.type == "cuda":
        assert [output for output, _ in seen[0]] == [output for output, _ in seen[1]]
    else:
        assert seen[0] == seen[1]


def test_only_the_attention_s_output_is_quantized_by_itself(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is the input of the first layer, which comes from the embedding's norm."""
    layers = 3
    save_model(tmp_path, "Llama", num_hidden_layers=layers)
    calls = []

    def noted(x: Tensor, dtype: torch.dtype) -> QuantizedRows:
        calls.append(x.shape)
        return quantize_rows(x, dtype)

    monkeypatch.setattr(quantized_linear, "quantize_rows", noted)
    ops = InBytes(device, torch.float32)
    runner = make_runner(tmp_path, ops=ops)
    calls.clear()
    Driver(runner, seed=3, max_chunk=16).run(Request([5, 6], 1, SamplingParams(temperature=0.0)))
    head = 1  # the output layer takes what the last norm computes
    assert len(calls) == layers + 1 + head


def test_products_in_floats_get_floats(device: torch.device, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    ops = InBytes(device, torch.float32)
    network = make_decoder(tmp_path, ops).network
    assert isinstance(network, Llama)
    assert isinstance(network._run_layers, QuantizedLayers)
    plain = make_decoder(tmp_path, TritonOps(device, torch.float32)).network
    assert isinstance(plain, Llama)
    assert not isinstance(plain._run_layers, QuantizedLayers)
    assert not QuantizedLayers.takes(plain._layers)
    x, residual = torch.ones(2, 8, device=device), torch.ones(2, 8, device=device)
    given = quantized_layers._norm(x, residual, torch.ones(8, device=device), 1e-5, plain._layers[0].qkv)
    assert isinstance(given, Tensor)
