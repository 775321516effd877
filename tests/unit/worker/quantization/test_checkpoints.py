"""Whole quantized checkpoints: greedy tokens are those of transformers with the dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.ops.reference import ReferenceOps
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.fp8_blocks import Fp8BlockWeight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.weight import QuantizedWeight
from services.worker.quantization.scheme import BlocksBut
from services.worker.startup.create_ops import create_ops
from services.worker.weights.safetensors_source import SafetensorsSource
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.quantization import stored
from tests.unit.worker.quantization.stored import GROUP, quantize_checkpoint
from tests.unit.worker.tiny_models import NearTies, make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
PROMPTS = [[5, 9, 11], [7] * 30, [100, 3, 150, 20, 21]]
Store = Callable[[str, Tensor], tuple[QuantizedWeight, stored.Tensors]]


def compressed(form: str, weights: dict[str, Any], **others: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | others},
        "ignore": ["lm_head"],
    }


def awq(**others: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True} | others


def gptq(**others: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False} | others


FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False}
CHECKPOINTS: dict[str, tuple[dict[str, Any], Store, type[QuantizedWeight]]] = {
    "fp8 of compressed-tensors": (compressed("float-quantized", FP8), stored.fp8_per_output, Fp8Weight),
    "fp8 in blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [24, 40]},
        stored.fp8_in_blocks(24, 40, "weight_scale_inv"),
        Fp8BlockWeight,
    ),
    "fp8 in blocks with powers of two": (
        {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
        stored.fp8_in_blocks(128, 128, "weight_scale_inv", torch.float8_e8m0fnu),
        Fp8BlockWeight,
    ),
    "fp8 in blocks of compressed-tensors": (
        compressed(
            "float-quantized",
            FP8 | {"strategy": "block", "block_structure": [16, 32]},
            input_activations={"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True},
        ),
        stored.fp8_in_blocks(16, 32, "weight_scale", torch.bfloat16),
        Fp8BlockWeight,
    ),
    "int8 of compressed-tensors": (compressed("int-quantized", INT8), stored.int8_per_output, Int8Weight),
    "packed int8": (
        compressed("pack-quantized", INT8 | {"strategy": "group", "group_size": GROUP}),
        stored.packed_int8,
        Int8Weight,
    ),
    "packed int4": (compressed("pack-quantized", INT4), stored.packed_int4, Int4Weight),
    "asymmetric int8": (
        compressed("int-quantized", INT8 | {"symmetric": False}),
        stored.asymmetric_int8_per_output,
        Int8Weight,
    ),
    "packed asymmetric int8": (
        compressed("pack-quantized", INT8 | {"strategy": "group", "group_size": GROUP, "symmetric": False}),
        stored.packed_asymmetric_int8,
        Int8Weight,
    ),
    "awq": (awq(), stored.awq, Int4Weight),
    "awq for other kernels": (awq(version="gemv"), stored.awq_gemv, Int4Weight),
    "awq without zero points": (awq(zero_point=False), stored.awq, Int4Weight),
    "gptq": (gptq(), stored.gptq(None), Int4Weight),
    "gptq of 2 bits": (gptq(bits=2), stored.gptq_of_bits(2), Int4Weight),
    "gptq of 3 bits": (gptq(bits=3), stored.gptq_of_bits(3), Int4Weight),
    "gptq of 8 bits": (gptq(bits=8), stored.gptq_of_bits(8), Int8Weight),
    "gptq of 8 bits, act-order": (gptq(bits=8, desc_act=True), stored.gptq_of_bits(8, True), Int8Weight),
    "gptq, act-order": (gptq(desc_act=True), stored.gptq("alike"), Int4Weight),
    "gptq, act-order of each projection": (gptq(desc_act=True), stored.gptq("apart"), Int4Weight),
}


def check_tokens(reference: Any, directory: Path, compiled: bool) -> None:
    near_ties = NearTies()
    ops = create_ops(CPU, torch.float32) if compiled else ReferenceOps(CPU, torch.float32)
    for request in Driver(make_runner(directory, ops=ops)).run(*[Request(prompt, 8) for prompt in PROMPTS]):
        near_ties.check(reference, request.prompt, request.output)
    near_ties.report()


@pytest.mark.parametrize("compiled", [False, True], ids=["reference", "compiled"])
@pytest.mark.parametrize("case", CHECKPOINTS)
def test_tokens_are_those_of_the_dequantized_weights(tmp_path: Path, case: str, compiled: bool) -> None:
    settings, store, _ = CHECKPOINTS[case]
    check_tokens(quantize_checkpoint(tmp_path, "Qwen2", settings, store), tmp_path, compiled)


@pytest.mark.parametrize("case", ["awq", "packed int4", "fp8 of compressed-tensors"])
def test_projections_that_a_checkpoint_holds_joined_are_quantized_joined(tmp_path: Path, case: str) -> None:
    settings, store, _ = CHECKPOINTS[case]
    check_tokens(quantize_checkpoint(tmp_path, "Phi3", settings, store), tmp_path, compiled=False)


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_weights_stay_as_they_are_stored(tmp_path: Path, case: str) -> None:
    settings, store, kind = CHECKPOINTS[case]
    quantize_checkpoint(tmp_path, "Llama", settings, store)
    source = open_source(tmp_path)
    assert isinstance(source.weight("model.layers.1.mlp.down_proj"), kind)
    assert isinstance(source.weight("lm_head"), Tensor)
    assert isinstance(source.weight("model.embed_tokens"), Tensor)


@pytest.mark.parametrize(
    "settings",
    [
        awq(modules_to_not_convert=["k_proj", "model.layers.1.mlp"]),
        gptq(modules_in_block_to_quantize=[["self_attn.q_proj", "self_attn.v_proj"], ["self_attn.o_proj"]]),
        compressed("pack-quantized", INT4) | {"ignore": ["re:.*k_proj", "lm_head", "model.layers.0.mlp.up_proj"]},
    ],
    ids=["modules_to_not_convert", "modules_in_block_to_quantize", "ignore"],
)
def test_projections_that_are_left_out_are_in_floats_beside_quantized_ones(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    dense = {
        "awq": ("k_proj", "layers.1.mlp"),
        "gptq": ("k_proj", "mlp"),
        "compressed-tensors": ("k_proj", "layers.0.mlp.up_proj"),
    }
    method = settings["quant_method"]
    store = {"awq": stored.awq, "gptq": stored.gptq(None), "compressed-tensors": stored.packed_int4}[method]
    check_tokens(quantize_checkpoint(tmp_path, "Llama", settings, store, dense[method]), tmp_path, compiled=False)


def test_a_layer_that_is_left_out_is_none_that_begins_alike() -> None:
    selection = BlocksBut(excluded=("model.layers.1", "down_proj"))
    assert not selection.selects("model.layers.1.mlp.up_proj")
    assert not selection.selects("model.layers.10.mlp.down_proj")
    assert selection.selects("model.layers.10.mlp.up_proj")
    assert not selection.selects("lm_head")
    assert not selection.selects("model.embed_tokens")
    assert selection.selects("transformer.h.3.mlp.c_fc")
    assert not selection.selects("transformer.wte")
    assert not selection.selects("embed_out")


def test_layers_of_a_gptq_checkpoint_have_settings_of_their_own(tmp_path: Path) -> None:
    dynamic: dict[str, Any] = {
        r"-:.*\.0\.mlp\.down_proj": {},
        r"+:.*down_proj": {"bits": 8},
        ".*up_proj": {"bits": 3},
    }

    def store(layer: str, weight: Tensor) -> tuple[QuantizedWeight, stored.Tensors]:
        bits = 8 if layer.endswith("down_proj") else 3 if layer.endswith("up_proj") else 4
        return stored.gptq_of_bits(bits)(layer, weight)

    model = quantize_checkpoint(tmp_path, "Llama", gptq(dynamic=dynamic), store, dense=("layers.0.mlp.down_proj",))
    source = open_source(tmp_path)
    assert isinstance(source.weight("model.layers.0.mlp.down_proj"), Tensor)
    assert isinstance(source.weight("model.layers.1.mlp.down_proj"), Int8Weight)
    check_tokens(model, tmp_path, compiled=False)


@pytest.mark.parametrize("order", [1, -1])
def test_layers_of_a_mixed_checkpoint_have_the_format_of_their_name(tmp_path: Path, order: int) -> None:
    """Whatever the order of the groups."""
    groups = [
        ("rest", {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"}),
        ("down", {"targets": ["re:.*down_proj$"], "weights": INT8, "format": "int-quantized"}),
        ("one", {"targets": ["model.layers.1.mlp.down_proj"], "weights": FP8, "format": "float-quantized"}),
    ]

    def store(layer: str, weight: Tensor) -> tuple[QuantizedWeight, stored.Tensors]:
        if layer == "model.layers.1.mlp.down_proj":
            return stored.fp8_per_output(layer, weight)
        return (stored.int8_per_output if layer.endswith("down_proj") else stored.packed_int4)(layer, weight)

    settings = compressed("mixed-precision", {}) | {"config_groups": dict(groups[::order])}
    model = quantize_checkpoint(tmp_path, "Llama", settings, store)
    source = open_source(tmp_path)
    kinds = {0: Int8Weight, 1: Fp8Weight, 2: Int8Weight}
    for layer, kind in kinds.items():
        assert isinstance(source.weight(f"model.layers.{layer}.mlp.down_proj"), kind)
        assert isinstance(source.weight(f"model.layers.{layer}.mlp.up_proj"), Int4Weight)
    check_tokens(model, tmp_path, compiled=True)


def test_scales_per_tensor_hold_for_each_output(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    model = quantize_checkpoint(tmp_path, "Llama", settings, stored.fp8_per_tensor)
    weight = open_source(tmp_path).weight("model.layers.0.self_attn.q_proj")
    assert isinstance(weight, Fp8Weight)
    assert weight.quantize_activations
    assert torch.equal(weight.dequantize(), model.get_parameter("model.layers.0.self_attn.q_proj.weight"))


def test_transformers_names_the_scale_of_a_tensor_as_that_of_a_block(tmp_path: Path) -> None:
    def store(layer: str, weight: Tensor) -> tuple[QuantizedWeight, stored.Tensors]:
        quantized, tensors = stored.fp8_per_tensor(layer, weight)
        names = {"weight": "weight", "weight_scale": "weight_scale_inv", "input_scale": "activation_scale"}
        return quantized, {names[name]: tensor for name, tensor in tensors.items()}

    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    model = quantize_checkpoint(tmp_path, "Llama", settings, store)
    weight = open_source(tmp_path).weight("model.layers.0.self_attn.q_proj")
    assert isinstance(weight, Fp8Weight)
    assert torch.equal(weight.dequantize(), model.get_parameter("model.layers.0.self_attn.q_proj.weight"))


@pytest.mark.parametrize("in_own_file", [False, True])
def test_fp8_of_modelopt_is_that_of_a_tensor(tmp_path: Path, in_own_file: bool) -> None:
    settings = {"quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.0.mlp*", "*k_proj"]}
    dense = ("layers.0.mlp", "k_proj")
    written = {} if in_own_file else {"quant_method": "modelopt"} | settings
    model = quantize_checkpoint(tmp_path, "Llama", written, stored.fp8_per_tensor, dense)
    if in_own_file:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": settings}))
    source = open_source(tmp_path)
    for layer, kind in (("0.mlp.up_proj", Tensor), ("1.mlp.up_proj", Fp8Weight), ("1.self_attn.k_proj", Tensor)):
        weight = source.weight(f"model.layers.{layer}")
        assert isinstance(weight, kind)
        numbers = weight if isinstance(weight, Tensor) else weight.dequantize()
        assert torch.equal(numbers, model.get_parameter(f"model.layers.{layer}.weight"))


def test_activations_are_quantized_if_the_checkpoint_says_so(tmp_path: Path) -> None:
    for form, weights, store in (
        ("float-quantized", FP8, stored.fp8_per_output),
        ("int-quantized", INT8, stored.int8_per_output),
    ):
        activations = {"num_bits": 8, "type": weights["type"], "strategy": "token", "dynamic": True}
        settings = compressed(form, weights, input_activations=activations)
        quantize_checkpoint(tmp_path / form, "Llama", settings, store)
        weight = open_source(tmp_path / form).weight("model.layers.0.self_attn.q_proj")
        assert isinstance(weight, Fp8Weight | Int8Weight)
        assert weight.quantize_activations


def test_biases_that_the_architecture_lacks_are_let_pass_in_gptq_if_they_are_zero(tmp_path: Path) -> None:
    model = quantize_checkpoint(tmp_path, "Llama", gptq(), stored.gptq(None))
    name = "model.layers.0.self_attn.q_proj.bias"
    rewrite(tmp_path, {name: torch.zeros(64)})
    check_tokens(model, tmp_path, compiled=False)
    rewrite(tmp_path, {name: torch.ones(64)})
    with pytest.raises(ModelError, match=f"holds {name}"):
        open_source(tmp_path)


def test_groups_that_g_idx_does_not_fill_are_refused(tmp_path: Path) -> None:
    quantize_checkpoint(tmp_path, "Llama", gptq(), stored.gptq(None))
    rewrite(tmp_path, {"model.layers.0.self_attn.q_proj.g_idx": torch.zeros(64, dtype=torch.int32)})
    with pytest.raises(ModelError, match=r"q_proj in .*: g_idx does not assign 32 inputs to every group"):
        open_source(tmp_path).weight("model.layers.0.self_attn.q_proj")


def test_groups_that_do_not_divide_the_inputs_are_refused(tmp_path: Path) -> None:
    quantize_checkpoint(tmp_path, "Llama", awq(), stored.awq)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace(f'"group_size": {GROUP}', '"group_size": 128'))
    with pytest.raises(ModelError, match="a matrix of 64 inputs cannot be quantized in groups of 128"):
        open_source(tmp_path)


def open_source(directory: Path) -> SafetensorsSource:
    return SafetensorsSource(directory, read_model_config(directory), lambda _: None, CPU)


def rewrite(directory: Path, tensors: stored.Tensors) -> None:
    file = directory / "model.safetensors"
    save_file(load_file(file) | tensors, file)


REFUSED = {
    "another method": ({"quant_method": "bitsandbytes"}, "bitsandbytes, which is not supported; use .* --quantization"),
    "4 bits of bitsandbytes": (
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "is quantized with bitsandbytes, which is not supported",
    ),
    "exl2": ({"quant_method": "exl2", "bits": 4.65}, "with exl2, which is not supported; use .* GPTQ or GGUF"),
    "NVFP4 of ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        r"with modelopt \(NVFP4\), which is not supported; use .* fp8, AWQ or GPTQ",
    ),
    "another fp8 of ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
        r"modelopt \(FP8_PB_WO\), which is not supported; only FP8",
    ),
    "fp8 in blocks of no size": (
        {"quant_method": "fp8", "weight_block_size": 128},
        r"a block size is 128; expected \[outputs, inputs\]",
    ),
    "fp8 in blocks without an input": (
        {"quant_method": "fp8", "weight_block_size": [128, 0]},
        "a group size is 0",
    ),
    "fp8 of another format": ({"quant_method": "fp8", "fmt": "e5m2"}, "with fmt e5m2; only e4m3 is supported"),
    "fp8 embeddings": ({"quant_method": "fp8", "modules_to_convert": ["embed_tokens"]}, "modules_to_convert"),
    "AWQ of 3 bits": (awq(bits=3), "is quantized with AWQ to 3 bits; only 4 are supported"),
    "AWQ for other kernels": (
        awq(version="gemv_fast"),
        "is an AWQ checkpoint of version gemv_fast; only gemm and gemv are supported",
    ),
    "GPTQ of 5 bits": (gptq(bits=5), "is quantized with GPTQ to 5 bits; only 2, 3, 4, 8 are supported"),
    "GPTQ in other words": (gptq(pack_dtype="int16"), "is a GPTQ checkpoint packed into int16"),
    "GPTQ for Marlin": (gptq(checkpoint_format="marlin"), "in marlin format; only gptq and gptq_v2"),
    "GPTQ with a layer of 5 bits": (gptq(dynamic={"+:.*up_proj": {"bits": 5}}), "with GPTQ to 5 bits"),
    "not compressed": (compressed("dense", INT8) | {"quantization_status": "frozen"}, "weights in status frozen"),
    "sparse": (compressed("int-quantized", INT8) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "is sparse"),
    "transformed": (compressed("int-quantized", INT8) | {"transform_config": {"a": 1}}, "transformed activations"),
    "a preset": (compressed("int-quantized", INT8) | {"config_groups": {"W8A8": ["Linear"]}}, "preset scheme W8A8"),
    "4-bit floats": (
        compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group"}),
        "has nvfp4-pack-quantized weights, which are not supported; use a checkpoint of the same model in fp8",
    ),
    "asymmetric activations": (
        compressed("int-quantized", INT8, input_activations={"type": "int", "symmetric": False, "strategy": "token"}),
        r"with activations of 8 bits \(int, asymmetric\)",
    ),
    "8-bit activations on 4-bit weights": (
        compressed("pack-quantized", INT4, input_activations={"type": "int", "strategy": "token"}),
        "pack-quantized weights of 4 bits",
    ),
    "fp8 in blocks, compressed": (compressed("float-quantized", FP8 | {"strategy": "block"}), "a block size"),
    "quantized outputs": (compressed("int-quantized", INT8, output_activations={"type": "int"}), "int-quantized"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_with_what_is(tmp_path: Path, case: str) -> None:
    settings, sentence = REFUSED[case]
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "vocab_size": 199}
    config |= {"num_attention_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    with pytest.raises(ModelError, match=sentence) as refusal:
        read_model_config(tmp_path)
    assert any(word in str(refusal.value) for word in ("supported", "only", "expected"))
