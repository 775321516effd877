"""`--quantization`, `--kv-cache-dtype` and `--load-format`: what they do, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.reference import ReferenceOps
from services.worker.quantization.at_load import AT_LOAD, resolve_quantization
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.weight import QuantizedWeight, Weight
from services.worker.startup.load import load_worker
from services.worker.weights.dummy_source import DummySource
from services.worker.weights.loader import load_decoder
from services.worker.weights.open import open_weights
from services.worker.weights.source import NativeSource, WeightSource
from shared.config import ConfigError, build
from tests.unit.worker.quantization import stored
from tests.unit.worker.quantization.stored import GROUP, quantize_checkpoint
from tests.unit.worker.test_loading import write_tokenizer
from tests.unit.worker.tiny_models import save_model

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
REFERENCE = ReferenceOps(CPU, torch.float32)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}


def open_source(directory: Path, option: str | None, load_format: str = "auto") -> WeightSource:
    config = read_model_config(directory)
    at_load = resolve_quantization(option, config.quantization)
    return open_weights(directory, config, REFERENCE, load_format, at_load, lambda _: None)


@pytest.mark.parametrize(
    ("option", "kind", "quantizes_activations", "output_layer"),
    [("fp8", Fp8Weight, True, False), ("int8", Int8Weight, True, True), ("int8-weight-only", Int8Weight, False, True)],
)
@pytest.mark.parametrize("tied", [False, True])
def test_floats_are_quantized_as_they_are_loaded(
    tmp_path: Path,
    option: str,
    kind: type[QuantizedWeight],
    quantizes_activations: bool,
    output_layer: bool,
    tied: bool,
) -> None:
    model = save_model(tmp_path, "Llama", tie_word_embeddings=tied)
    source = open_source(tmp_path, option)
    weight = source.weight("model.layers.1.mlp.up_proj")
    assert isinstance(weight, Fp8Weight | Int8Weight)
    assert isinstance(weight, kind)
    assert weight.quantize_activations == quantizes_activations
    original = model.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert (weight.dequantize() - original).abs().max() < original.abs().max() / 16
    assert isinstance(source.weight("model.embed_tokens"), kind if output_layer and tied else Tensor)
    if not tied:
        assert isinstance(source.weight("lm_head"), kind if output_layer else Tensor)


def test_int4_takes_the_largest_groups_that_divide_the_inputs(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama", hidden_size=256, intermediate_size=96)
    source = open_source(tmp_path, "int4")
    for layer, group in (("model.layers.1.mlp.up_proj", 128), ("model.layers.1.mlp.down_proj", 32)):
        weight = source.weight(layer)
        assert isinstance(weight, Int4Weight)
        assert weight.group_size == group
        original = model.get_parameter(f"{layer}.weight")
        assert (weight.dequantize() - original).abs().mean() < original.abs().mean() / 8
    assert isinstance(source.weight("lm_head"), Tensor)
    assert isinstance(source.weight("model.embed_tokens"), Tensor)
    with pytest.raises(ModelError, match="a matrix of 200 inputs into groups; use int8-weight-only"):
        AT_LOAD["int4"].form.quantize(torch.ones(8, 200))


@pytest.mark.parametrize(
    "layer",
    [
        "model.layers.0.mlp.gate", "model.layers.0.mlp.router", "transformer.wpe", "score",
        "bert.embeddings.position_embeddings", "bert.embeddings.token_type_embeddings",
    ],
)  # fmt: skip
def test_small_matrices_that_decide_much_stay_in_floats(layer: str) -> None:
    assert not any(scheme.applies(layer, tied=True) for scheme in AT_LOAD.values())


def test_eetq_is_int8_of_the_weights() -> None:
    assert build(WorkerConfig, {"quantization": "eetq"}, environment={}).quantization == "int8-weight-only"


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("bitsandbytes", "use .* --quantization int4 or int8-weight-only"),
        ("nvfp4", "use .* in fp8, AWQ or GPTQ format"),
        ("modelopt_fp4", "use .* in fp8, AWQ or GPTQ format"),
        ("hqq", "use .* int4"),
        ("squeezellm", "use .* AWQ or GPTQ"),
        ("quip", "use .* int4"),
        ("aqlm", "use .* AWQ or GPTQ"),
        ("exl2", "use .* GPTQ or GGUF"),
    ],
)
def test_other_methods_are_refused_with_an_alternative(option: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"--quantization is '{option}', which is not supported: {advice}"):
        build(WorkerConfig, {"quantization": option}, environment={})


def test_a_checkpoint_in_floats_is_none_of_a_method() -> None:
    for option in ("awq", "gptq", "compressed-tensors", "mxfp4", "gguf"):
        with pytest.raises(ModelError, match=f"--quantization is {option}, but the checkpoint is not quantized"):
            resolve_quantization(option, None)


def test_a_quantized_checkpoint_is_what_it_is(tmp_path: Path) -> None:
    quantize_checkpoint(tmp_path, "Llama", AWQ, stored.awq)
    config = read_model_config(tmp_path)
    assert resolve_quantization(None, config.quantization) is None
    assert resolve_quantization("awq", config.quantization) is None
    for option in ("gptq", "fp8", "int8"):
        with pytest.raises(ModelError, match=f"--quantization is {option}, but the checkpoint is awq"):
            resolve_quantization(option, config.quantization)


def test_an_fp8_checkpoint_is_not_quantized_again(tmp_path: Path) -> None:
    quantize_checkpoint(tmp_path, "Llama", {"quant_method": "fp8"}, stored.fp8_per_tensor)
    assert resolve_quantization("fp8", read_model_config(tmp_path).quantization) is None


class IntegersOnly(ReferenceOps):
    """Computes with int8, but not with quantized activations."""

    def computes_with(self, weight: QuantizedWeight) -> bool:
        return isinstance(weight, Int8Weight) and not weight.quantize_activations


def test_quantizing_is_refused_where_the_operations_would_undo_it(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    config = read_model_config(tmp_path)
    ops = IntegersOnly(CPU, torch.float32)
    source = open_weights(tmp_path, config, ops, "auto", AT_LOAD["fp8"], lambda _: None)
    with pytest.raises(ModelError, match="--quantization fp8 rounds weights to a format that the reference"):
        load_decoder(config, ops, source, 16)


@pytest.mark.parametrize(("option", "told"), [("int8", 1), ("int8-weight-only", 0)])
def test_weights_alone_are_quantized_where_the_operations_quantize_no_activations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, option: str, told: int
) -> None:
    save_model(tmp_path, "Llama")
    config = read_model_config(tmp_path)
    ops = IntegersOnly(CPU, torch.float32)
    source = open_weights(tmp_path, config, ops, "auto", AT_LOAD[option], lambda _: None)
    for layer in ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"):
        weight = source.weight(layer)
        assert isinstance(weight, Int8Weight)
        assert not weight.quantize_activations
    sentence = "the reference operations cannot compute with int8 activations: activations stay in float32"
    assert [record.getMessage().startswith(sentence) for record in caplog.records] == [True] * told


class OneWeight:
    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def weight(self, layer: str) -> Weight:
        return self._weight

    def vector(self, name: str) -> Tensor:
        raise AssertionError


def test_what_operations_do_not_compute_with_comes_as_near_as_they_do(caplog: pytest.LogCaptureFixture) -> None:
    matrix = torch.randn(8, 64)
    ops = IntegersOnly(CPU, torch.float32)
    activations = Int8Weight.quantize(matrix, quantize_activations=True)
    weight = NativeSource(OneWeight(activations), ops).weight("a")
    assert isinstance(weight, Int8Weight)
    assert not weight.quantize_activations
    assert torch.equal(weight.dequantize(), activations.dequantize())
    assert not caplog.records
    for quantized in (Int4Weight.quantize(matrix, 32), Fp8Weight.quantize(matrix)):
        source = NativeSource(OneWeight(quantized), ops)
        for layer in ("a", "b"):
            floats = source.weight(layer)
            assert isinstance(floats, Tensor)
            assert torch.equal(floats, quantized.dequantize())
    assert [record.args for record in caplog.records] == [
        ("reference", "Int4Weight", "float32"),
        ("reference", "Fp8Weight", "float32"),
    ]


def test_dummy_weights_have_the_forms_of_the_configuration(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": AWQ}))
    source = open_source(tmp_path, None, "dummy")
    weight = source.weight("model.layers.0.mlp.up_proj")
    assert isinstance(weight, Int4Weight)
    assert weight.group_size == GROUP
    assert 0.018 < float(weight.dequantize().std()) < 0.022
    assert isinstance(source.weight("lm_head"), Tensor)
    in_half = DummySource(read_model_config(tmp_path).parameters, CPU, torch.bfloat16).weight("lm_head")
    assert isinstance(in_half, Tensor)
    assert in_half.dtype is torch.bfloat16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    save_model(directory, "Llama")
    write_tokenizer(directory)
    return directory


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quantization": "awq"}, "--quantization is awq, but the checkpoint is not quantized"),
        (
            {"quantization": "fp8"},
            "--quantization fp8 rounds weights to a format that the cpu operations cannot compute",
        ),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype is fp8, but the cpu operations keep keys and values in float32"),
        ({"load_format": "gguf"}, "--load-format is gguf, but {} is not a GGUF file"),
    ],
)
def test_a_worker_does_not_start_with_what_it_cannot_do(tiny: Path, options: dict[str, Any], sentence: str) -> None:
    CPUOps()  # which this is about
    with pytest.raises(ModelError) as refusal:
        load_worker(WorkerConfig(model=str(tiny), num_threads=1, device="cpu", **options), lambda *_: None)
    assert str(refusal.value).startswith(sentence.format(tiny))


def test_values_that_no_method_has_are_refused() -> None:
    for option in ({"quantization": "int3"}, {"kv_cache_dtype": "int8"}, {"load_format": "pt"}):
        with pytest.raises(ConfigError, match="use one of"):
            build(WorkerConfig, option, environment={})
