"""gpt-oss's checkpoints: experts in MXFP4 are the numbers that the specification and transformers make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import FP4_VALUES, _convert_moe_packed_tensors

from services.worker.errors import ModelError
from services.worker.models import read_model_config, weight_bytes
from services.worker.ops.reference import ReferenceOps
from services.worker.quantization.kinds import E2M1, Fp4Weight
from services.worker.quantization.mxfp4 import Mxfp4Format
from services.worker.startup.create_ops import create_ops
from services.worker.weights.open import open_weights
from services.worker.weights.safetensors_source import SafetensorsSource
from tests.models.case import Case
from tests.models.cases.gpt_oss import OPTIONS
from tests.models.tiny import save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
# The published checkpoints' quantization_config.
SETTINGS = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}
EXPERT = "model.layers.1.mlp.experts.gate_up_proj.3"


def save_quantized(directory: Path, settings: dict[str, Any] = SETTINGS) -> Any:
    """Writes a tiny model with experts in MXFP4, and returns transformers' model with the same numbers in floats."""
    model: Any = save(directory, Case("gpt_oss", OPTIONS))
    file, path = directory / "model.safetensors", directory / "config.json"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        weights = [Fp4Weight.quantize(expert) for expert in tensors.pop(name).mT]
        scales = torch.stack([weight.exponents for weight in weights])
        blocks = torch.stack([weight.packed for weight in weights]).view(*scales.shape, 16)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats = _convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        model.get_parameter(name).data.copy_(floats)
    save_file(tensors, file)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))
    return model


def rewrite(directory: Path, name: str, tensor: Tensor) -> None:
    file = directory / "model.safetensors"
    save_file(load_file(file) | {name: tensor}, file)


def open_source(directory: Path) -> SafetensorsSource:
    return SafetensorsSource(directory, read_model_config(directory), lambda _: None, CPU)


def test_the_codes_are_those_of_transformers() -> None:
    assert list(E2M1) == FP4_VALUES


def test_blocks_and_scales_are_the_numbers_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (7, 5, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(0, 252, (7, 5), generator=generator, dtype=torch.uint8)
    scales[0, :2] = torch.tensor([0, 252])  # 2⁻¹²⁷ is subnormal
    weight = Mxfp4Format().read({"blocks": blocks, "scales": scales}, 7, 160)
    assert isinstance(weight, Fp4Weight)
    expected = _convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float64)[0].T
    assert torch.equal(weight.dequantize().double(), expected)


def test_scales_are_exact_powers_of_two() -> None:
    weight = Fp4Weight(torch.zeros(255, 16, dtype=torch.uint8), torch.arange(255, dtype=torch.uint8)[:, None])
    assert weight.scales.flatten().tolist() == [2.0 ** (exponent - 127) for exponent in range(255)]


def test_an_exponent_of_255_is_no_number() -> None:
    weight = Fp4Weight(torch.zeros(1, 32, dtype=torch.uint8), torch.tensor([[255, 127]], dtype=torch.uint8))
    assert weight.dequantize()[0, :32].isnan().all()
    assert not weight.dequantize()[0, 32:].any()


@pytest.mark.parametrize("compiled", [False, True], ids=["reference", "compiled"])
def test_tokens_are_those_of_the_dequantized_weights(tmp_path: Path, compiled: bool) -> None:
    model = save_quantized(tmp_path)
    ops = create_ops(CPU, torch.float32) if compiled else ReferenceOps(CPU, torch.float32)
    near_ties = NearTies()
    prompts = [[5, 9, 11], [7] * 30, [100, 3, 150, 20, 21]]
    for request in Driver(make_runner(tmp_path, ops=ops)).run(*[Request(prompt, 8) for prompt in prompts]):
        near_ties.check(model, request.prompt, request.output)
    near_ties.report()


def test_experts_stay_in_4_bits_and_all_else_in_floats(tmp_path: Path) -> None:
    save_quantized(tmp_path)
    config = read_model_config(tmp_path)
    ops = create_ops(CPU, torch.float32)
    for load_format in ("auto", "dummy"):
        source = open_weights(tmp_path, config, ops, load_format, None, lambda _: None)
        assert isinstance(source.weight(EXPERT), Fp4Weight)
        assert isinstance(source.weight("model.layers.1.mlp.router"), Tensor)
        assert isinstance(source.weight("model.layers.1.self_attn.q_proj"), Tensor)
    experts = 3 * 5 * (192 * 64 + 64 * 96)
    floats = sum(
        tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values() if tensor.is_floating_point()
    )
    assert weight_bytes(config, 2) == experts // 32 * 17 + 2 * floats


@pytest.mark.parametrize("excluded", ["model.layers.1.mlp.experts", "layers.*.experts", "model.layers.1"])
def test_experts_that_the_settings_leave_out_are_in_floats(tmp_path: Path, excluded: str) -> None:
    save_quantized(tmp_path, SETTINGS | {"modules_to_not_convert": [excluded]})
    with pytest.raises(ModelError, match=r"lacks model\.layers\..\.mlp\.experts\.down_proj and \d more tensors"):
        open_source(tmp_path)


def test_experts_of_another_layer_are_not_left_out(tmp_path: Path) -> None:
    save_quantized(tmp_path, SETTINGS | {"modules_to_not_convert": ["model.layers.1x", "model.layers.11"]})
    assert isinstance(open_source(tmp_path).weight(EXPERT), Fp4Weight)


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    save_quantized(tmp_path, SETTINGS | {"modules_to_not_convert": ["layers.(1"]})
    with pytest.raises(ModelError, match="is no regular expression"):
        read_model_config(tmp_path)


def test_blocks_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_quantized(tmp_path)
    name = "model.layers.1.mlp.experts.down_proj_blocks"
    rewrite(tmp_path, name, torch.zeros(5, 64, 2, 16, dtype=torch.uint8))
    with pytest.raises(ModelError, match=r"is \(5, 64, 2, 16\); config\.json says \(5, 64, 3, 16\)"):
        open_source(tmp_path)


def test_inputs_that_fill_no_groups_are_refused(tmp_path: Path) -> None:
    save_quantized(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 80}))
    with pytest.raises(ModelError, match="a matrix of 80 inputs cannot be quantized in groups of 32"):
        open_source(tmp_path)
