"""Matrices that a checkpoint stores as one tensor for all experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models import Build, Matrix, ModelConfig, num_parameters, weight_bytes
from services.worker.models.config import GenerationDefaults
from services.worker.models.declare import declare
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.step import Step
from services.worker.ops import Linear
from services.worker.quantization import AtLoad, CheckpointQuantization, Int8Format, Kind
from services.worker.quantization.fp8_blocks import Fp8BlockFormat
from services.worker.quantization.scheme import BlocksBut
from services.worker.startup.create_ops import create_ops
from services.worker.weights import load_decoder
from services.worker.weights.open import open_weights
from tests.unit.worker.quantization.stored import fp8_in_blocks

CPU = torch.device("cpu")
EXPERTS, OUTPUTS, INPUTS = 3, 10, 16
EVEN_FIRST = (*range(0, OUTPUTS, 2), *range(1, OUTPUTS, 2))


@dataclass(frozen=True, slots=True)
class StackConfig(NetworkConfig):
    is_transposed: bool


class Stack:
    """A network that is nothing but one stack of matrices."""

    def __init__(self, config: StackConfig, build: Build) -> None:
        matrix = Matrix(
            "up", OUTPUTS, INPUTS, has_bias=True, is_transposed=config.is_transposed, rows=lambda: EVEN_FIRST
        )
        self.experts = [build.inside("mlp").linear(expert) for expert in matrix.stacked(EXPERTS)]

    def hidden_states(self, step: Step) -> Tensor:
        raise NotImplementedError

    def logits(self, hidden_states: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.fixture(params=[False, True], ids=["outputs first", "inputs first"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    architecture: Architecture[Any] = Architecture(lambda _name, _config: network, Stack)
    network = StackConfig(1, INPUTS, OUTPUTS, 8, tie_word_embeddings=False, is_transposed=request.param)
    return ModelConfig("Stack", architecture, network, declare(Stack, network), (), GenerationDefaults(), "float32")


def stored(config: ModelConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    assert isinstance(config.network, StackConfig)
    sizes = (INPUTS, OUTPUTS) if config.network.is_transposed else (OUTPUTS, INPUTS)
    return {
        "mlp.up": torch.randn(EXPERTS, *sizes, generator=generator),
        "mlp.up_bias": torch.randn(EXPERTS, OUTPUTS, generator=generator),
    }


def load(config: ModelConfig, path: Path, load_format: str = "auto", at_load: AtLoad | None = None) -> list[Linear]:
    ops = create_ops(CPU, torch.float32)
    source = open_weights(path, config, ops, load_format, at_load, lambda _: None)
    network = load_decoder(config, ops, source, 8).network
    assert isinstance(network, Stack)
    return network.experts


def expected(config: ModelConfig, x: Tensor) -> list[Tensor]:
    assert isinstance(config.network, StackConfig)
    weights, biases = stored(config).values()
    matrices = weights if config.network.is_transposed else weights.mT
    return [(x @ matrix + bias)[:, EVEN_FIRST] for matrix, bias in zip(matrices, biases, strict=True)]


def test_each_expert_is_its_part_of_the_tensors(tmp_path: Path, config: ModelConfig) -> None:
    save_file(stored(config), tmp_path / "model.safetensors")
    x = torch.randn(4, INPUTS)
    for linear, y in zip(load(config, tmp_path), expected(config, x), strict=True):
        torch.testing.assert_close(linear(x), y)


def test_experts_are_quantized_at_load_by_output(tmp_path: Path, config: ModelConfig) -> None:
    save_file(stored(config), tmp_path / "model.safetensors")
    x = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(1))
    experts = load(config, tmp_path, at_load=AtLoad("int8", Kind.INT8, Int8Format(quantize_activations=False), True))
    for linear, y in zip(experts, expected(config, x), strict=True):
        torch.testing.assert_close(linear(x), y, rtol=0.0, atol=0.1)


def test_fp8_in_blocks_is_stored_by_expert(tmp_path: Path, config: ModelConfig) -> None:
    """With the names that transformers gives. The blocks always have outputs first."""
    form = Fp8BlockFormat(4, 6, "weight_scale_inv")
    config = replace(config, quantization=CheckpointQuantization("fp8", ((BlocksBut(), form),)))
    pairs = [
        fp8_in_blocks(form.outputs, form.inputs, "scales")("", torch.randn(OUTPUTS, INPUTS)) for _ in range(EXPERTS)
    ]
    tensors = {
        "mlp.up": torch.stack([parts["weight"] for _, parts in pairs]),
        "mlp.up_scale_inv": torch.stack([parts["scales"] for _, parts in pairs]),
        "mlp.up_bias": torch.randn(EXPERTS, OUTPUTS),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    x = torch.randn(4, INPUTS)
    for linear, (weight, _), bias in zip(load(config, tmp_path), pairs, tensors["mlp.up_bias"], strict=True):
        torch.testing.assert_close(linear(x), (x @ weight.dequantize().t() + bias)[:, EVEN_FIRST])


def test_dummy_experts_differ(tmp_path: Path, config: ModelConfig) -> None:
    x = torch.randn(4, INPUTS)
    outputs = [linear(x) for linear in load(config, tmp_path, "dummy")]
    assert all(output.shape == (4, OUTPUTS) for output in outputs)
    assert not outputs[0].equal(outputs[1])


def test_all_experts_count(config: ModelConfig) -> None:
    assert num_parameters(config) == EXPERTS * OUTPUTS * (INPUTS + 1)
    assert weight_bytes(config, 2) == 2 * num_parameters(config)


def test_a_tensor_of_too_few_experts_is_refused(tmp_path: Path, config: ModelConfig) -> None:
    save_file({name: tensor[1:].clone() for name, tensor in stored(config).items()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"mlp\.up in .* is \(2, 1., 1.\); config\.json says \(3, 1., 1.\)"):
        load(config, tmp_path)


def test_a_missing_bias_is_refused(tmp_path: Path, config: ModelConfig) -> None:
    save_file({"mlp.up": stored(config)["mlp.up"]}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks mlp\.up_bias, which Stack needs"):
        load(config, tmp_path)
