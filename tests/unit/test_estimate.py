"""`quire estimate` counts what the worker would load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from quire.cli.estimate import EstimateConfig, can_split, estimate, main
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.models.decoders.llama import LlamaConfig
from services.worker.models.size import kv_bytes_per_token, num_parameters, weight_bytes
from services.worker.ops.reference import ReferenceOps
from services.worker.pages.kv_cache import allocate_pages
from services.worker.quantization.at_load import AT_LOAD
from services.worker.weights.open import open_weights
from services.worker.weights.source import WeightSource
from tests.unit.worker.quantization import stored
from tests.unit.worker.quantization.stored import quantize_checkpoint
from tests.unit.worker.tiny_models import save_model

REFERENCE = ReferenceOps(torch.device("cpu"), torch.float32)
FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_kv_bytes_are_those_of_the_model_itself(tmp_path: Path, family: str) -> None:
    model = save_model(tmp_path, family)
    config = read_model_config(tmp_path)
    assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())
    allocated = allocate_pages(config, 10, 8, torch.device("cpu"), torch.float32)
    pages = sum(layer.keys.nbytes + layer.values.nbytes for layer in allocated)
    assert kv_bytes_per_token(config, 4) * 8 * 10 == pages


def test_the_bundled_model_s_file_is_what_it_says() -> None:
    directory = Path(__file__).parents[2] / "quire" / "models" / "quire-chat"
    with safe_open(directory / "model.safetensors", "pt") as file:
        count = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - no mapping
    assert num_parameters(read_model_config(directory)) == count


def loaded_bytes(config: ModelConfig, source: WeightSource) -> int:
    """Of the tensors that a source's weights consist of."""
    total = 0
    for name, shape in config.parameters.items():
        taken = source.vector(name) if len(shape) == 1 else source.weight(name)
        parts = (
            [taken] if isinstance(taken, Tensor) else [getattr(taken, field) for field in taken.__dataclass_fields__]
        )
        total += sum(part.nbytes for part in parts if isinstance(part, Tensor))
    return total


@pytest.mark.parametrize("option", AT_LOAD)
@pytest.mark.parametrize("tied", [False, True])
def test_weights_quantized_at_load_are_counted_as_they_will_lie_in_memory(
    tmp_path: Path, option: str, tied: bool
) -> None:
    save_model(tmp_path, "Llama", tie_word_embeddings=tied)
    config, scheme = read_model_config(tmp_path), AT_LOAD[option]
    source = open_weights(tmp_path, config, REFERENCE, "auto", scheme, lambda _: None)
    assert weight_bytes(config, 4, scheme) == loaded_bytes(config, source)
    assert weight_bytes(config, 4, scheme) < weight_bytes(config, 4) == num_parameters(config) * 4
    assert estimate(config, EstimateConfig(quantization=option)).weight_gb == weight_bytes(config, 4, scheme) / 1e9


GROUPS = {"bits": 4, "group_size": stored.GROUP}
# How each is stored, and the setting in config.json.
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "awq": (stored.awq, {"quant_method": "awq"} | GROUPS),
    "awq gemv": (stored.awq_gemv, {"quant_method": "awq", "version": "gemv", "bits": 4, "group_size": 32}),
    "gptq": (stored.gptq(None), {"quant_method": "gptq"} | GROUPS),
    "gptq 2": (stored.gptq_of_bits(2), {"quant_method": "gptq"} | GROUPS | {"bits": 2}),
    "gptq 3": (stored.gptq_of_bits(3), {"quant_method": "gptq"} | GROUPS | {"bits": 3}),
    "gptq 8": (stored.gptq_of_bits(8), {"quant_method": "gptq"} | GROUPS | {"bits": 8}),
    "fp8": (stored.fp8_per_output, {"quant_method": "fp8"}),
    "fp8 per tensor": (stored.fp8_per_tensor, {"quant_method": "fp8"}),
    "fp8 in blocks": (
        stored.fp8_in_blocks(40, 48, "weight_scale_inv"), {"quant_method": "fp8", "weight_block_size": [40, 48]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_quantized_checkpoints_are_counted_as_they_will_lie_in_memory(tmp_path: Path, name: str) -> None:
    store, settings = CHECKPOINTS[name]
    quantize_checkpoint(tmp_path, "Llama", settings, store)
    config = read_model_config(tmp_path)
    source = open_weights(tmp_path, config, REFERENCE, "auto", None, lambda _: None)
    counted = weight_bytes(config, 4)
    assert counted == loaded_bytes(config, source) < num_parameters(config) * 4
    assert estimate(config, EstimateConfig()).quantization == settings["quant_method"]


def test_the_command_knows_quantization(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quantization", "int8"]) == 0
    assert "in bfloat16 and int8" in capsys.readouterr().out
    quantize_checkpoint(tmp_path, "Llama", {"quant_method": "fp8"}, stored.fp8_per_output)
    assert main([str(tmp_path), "--quantization", "int8"]) == 1
    assert "--quantization is int8, but the checkpoint is fp8" in capsys.readouterr().err


def test_more_memory_holds_more_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    small = read_model_config(tmp_path)
    assert isinstance(small.network, LlamaConfig)
    network = replace(
        small.network, hidden_size=8192, intermediate_size=28_672, num_heads=64, num_kv_heads=8, head_dim=128,
        layers=small.network.layers[:1] * 80, vocab_size=128_256, max_model_len=131_072, tie_word_embeddings=False,
    )  # fmt: skip
    large = replace(small.with_network(network), dtype="bfloat16")
    result = estimate(large, EstimateConfig())
    assert result.num_parameters == pytest.approx(70.55e9, rel=0.001)  # as published for Llama 3 70B
    assert result.kv_bytes_per_token == 327_680
    fits = {(place.gpu, place.tensor_parallel_size): place for place in result.placements}
    assert ("H100", 1) not in fits
    assert ("A100 40GB", 2) not in fits
    assert fits["H100", 4].num_blocks < fits["H200", 4].num_blocks < fits["H200", 8].num_blocks
    assert fits["H200", 2].num_sequences == fits["H200", 2].num_blocks // 128


@pytest.mark.parametrize(("kv_heads", "ranks", "fits"), [(8, 4, True), (2, 8, True), (3, 2, False), (6, 4, False)])
def test_heads_are_split_evenly_or_not_at_all(tmp_path: Path, kv_heads: int, ranks: int, fits: bool) -> None:
    save_model(tmp_path, "Llama")
    config = read_model_config(tmp_path)
    assert isinstance(config.network, LlamaConfig)
    sizes = replace(config.network, num_heads=24, num_kv_heads=kv_heads, intermediate_size=96)
    config = config.with_network(sizes)
    assert can_split(config, ranks) == fits


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "H200" in capsys.readouterr().out
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "LlamaForCausalLM"
    assert main(["/nowhere"]) == 1
    assert "there is no directory /nowhere" in capsys.readouterr().err
