"""`quire estimate` knows every type of model: its parameters, those of them that a token takes, and its memory."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.cli.estimate import EstimateConfig, estimate, find_model, main, text
from services.worker.checkpoint.find import Checkpoint
from services.worker.models import (
    EncoderConfig,
    ModelConfig,
    kv_bytes_per_token,
    num_active_parameters,
    num_parameters,
    weight_bytes,
)
from services.worker.ops.reference import ReferenceOps
from services.worker.pages import allocate_pages
from services.worker.quantization import COMPUTED
from services.worker.quantization.at_load import AT_LOAD
from services.worker.quantization.kinds import Weight
from services.worker.weights import load_decoder, load_encoder, open_weights
from services.worker.weights.source import WeightSource
from tests.models.case import Case, chosen
from tests.models.cases import ALL
from tests.models.encoder_cases import CASES as ENCODERS
from tests.models.tiny import configure, save, save_encoder
from tests.unit.worker.quantization.stored import fp8_in_blocks
from tests.unit.worker.quantization.test_mxfp4 import save_quantized

CPU = torch.device("cpu")
# Configurations alone are fast, but for those that transformers tries out.
CASES = [case for case in (*ALL, *ENCODERS) if case.implementation == "auto" or case in chosen(ALL)]


def describe(directory: Path, case: Case) -> tuple[ModelConfig | EncoderConfig, Any]:
    """Returns what is read from the config.json of a case, and transformers' model without data."""
    config = configure(case)
    auto: Any = transformers.AutoModelForCausalLM
    if "text_config" in case.options:
        auto = transformers.AutoModelForMultimodalLM
    elif case in ENCODERS:
        auto = getattr(transformers, f"AutoModelFor{case.head}" if case.head else "AutoModel")
    with torch.device("meta"):
        model = auto.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory)
    return read(directory, case), model


def read(directory: Path, case: Case) -> ModelConfig | EncoderConfig:
    checkpoint = Checkpoint(directory, (), implementation=case.implementation)
    return checkpoint.read_encoder_config() or checkpoint.read_config()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameters_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    config, model = describe(tmp_path, case)
    if isinstance(config, EncoderConfig):
        model = model.base_model  # heads and poolers are not loaded
    parameters = {name: p.numel() for name, p in model.named_parameters() if _is_loaded(config, name)}
    stored = {name: b.numel() for name, b in model.named_buffers() if name in model.state_dict()}  # such as biases
    assert sum(parameters.values()) <= num_parameters(config) <= sum((*parameters.values(), *stored.values()))
    mixtures = config.declaration.mixtures
    of_experts = sum(count for name, count in parameters.items() if ".experts." in name)
    assert sum(one.num_experts * one.num_parameters for one in mixtures) == of_experts
    assert {one.num_chosen for one in mixtures} == (
        {_num_chosen(model.config.get_text_config())} if mixtures else set()
    )
    result = estimate(config, EstimateConfig())
    assert f"{config.architecture}: " in text(result, 100)


def _is_loaded(config: ModelConfig | EncoderConfig, name: str) -> bool:
    return config.own_name(name) is not None and not name.startswith("pooler.")


def _num_chosen(config: Any) -> int:
    names = ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts")
    return next(int(getattr(config, name)) for name in names if getattr(config, name, None))


class CountingOps(ReferenceOps):
    """Counts the bytes of the matrices that it gets."""

    def __init__(self) -> None:
        super().__init__(CPU, torch.float32)
        self.num_bytes = 0

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Any:
        if isinstance(weight, Tensor):
            self.num_bytes += weight.numel() * 4
        else:
            parts = (getattr(weight, field.name) for field in fields(weight))
            self.num_bytes += sum(part.nbytes for part in parts if isinstance(part, Tensor))
        return super().linear(weight, bias)

    def headwise_linear(self, weight: Tensor) -> Any:
        self.num_bytes += weight.numel() * 4
        return super().headwise_linear(weight)


class CountingSource:
    """Counts the values of norms, biases and the like, which are floats in every checkpoint."""

    def __init__(self, source: WeightSource) -> None:
        self._source, self.num_bytes = source, 0

    def weight(self, layer: str) -> Weight:
        return self._source.weight(layer)

    def vector(self, name: str) -> Tensor:
        vector = self._source.vector(name)
        self.num_bytes += vector.numel() * 4
        return vector


def loaded_bytes(directory: Path, config: ModelConfig | EncoderConfig, at_load: str | None = None) -> int:
    ops = CountingOps()
    scheme = None if at_load is None else AT_LOAD[at_load]
    source = CountingSource(open_weights(directory, config, ops, "auto", scheme, lambda _: None))
    with torch.inference_mode():
        if isinstance(config, ModelConfig):
            load_decoder(config, ops, source, config.max_model_len)
        else:
            load_encoder(config, ops, source, config.max_model_len)
    return ops.num_bytes + source.num_bytes


def first(model_type: str, implementation: str = "auto") -> Case:
    return next(c for c in (*ALL, *ENCODERS) if (c.model_type, c.implementation) == (model_type, implementation))


LOADED = [
    *map(first, ("gpt2", "falcon", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text", "gemma4_text", "bloom")),
    *map(first, ("opt", "llava", "bert", "mpnet", "modernbert")),
    *(first(name, "transformers") for name in ("youtu", "olmoe", "diffllama")),
]


@pytest.mark.parametrize("case", LOADED, ids=str)
def test_bytes_are_those_that_are_loaded(case: Case, tmp_path: Path) -> None:
    (save_encoder if case in ENCODERS else save)(tmp_path, case)
    config = read(tmp_path, case)
    assert weight_bytes(config, 4) == loaded_bytes(tmp_path, config)
    if isinstance(config, EncoderConfig):
        return
    for name, scheme in AT_LOAD.items():
        if name != "int4":  # not every matrix of these has groups
            assert weight_bytes(config, 4, scheme) == loaded_bytes(tmp_path, config, name)
    pages = allocate_pages(config, 10, 8, CPU, torch.float32)
    allocated = sum(tensor.nbytes for layer in pages for tensor in layer.tensors)
    assert kv_bytes_per_token(config, 4) * 8 * 10 == allocated


def test_quantizing_at_load_leaves_experts_that_the_device_computes_with_floats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = first("qwen3_moe")
    save(tmp_path, case)
    config, scheme = read(tmp_path, case), AT_LOAD["int8"]
    monkeypatch.setitem(COMPUTED, "cpu", COMPUTED["cuda"])
    assert weight_bytes(config, 4, scheme, COMPUTED["cuda"]) == loaded_bytes(tmp_path, config, "int8")
    assert weight_bytes(config, 4, scheme) < weight_bytes(config, 4, scheme, COMPUTED["cuda"])
    assert [record.getMessage() for record in caplog.records] == [
        "the reference operations compute experts with floats: --quantization int8 leaves the experts as they are"
    ]


def test_absorbed_matrices_in_fp8_blocks_are_floats(tmp_path: Path) -> None:
    save(tmp_path, first("deepseek_v3"))
    store, file, path = (
        fp8_in_blocks(24, 20, "weight_scale_inv"),
        tmp_path / "model.safetensors",
        tmp_path / "config.json",
    )
    tensors = load_file(file)
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        parts = {"weight": tensor}
        if tensor.dim() == 2 and ".layers." in name and not layer.endswith(".gate"):
            parts = store(layer, tensor)[1]
        stored |= {f"{layer}.{suffix}": part for suffix, part in parts.items()} if name != layer else {name: tensor}
    save_file(stored, file)
    settings = {"quant_method": "fp8", "weight_block_size": [24, 20]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))
    config = read(tmp_path, first("deepseek_v3"))
    assert weight_bytes(config, 4) == loaded_bytes(tmp_path, config) < 4 * num_parameters(config) / 2


def test_experts_in_mxfp4_take_half_a_byte_for_each_number_and_scales(tmp_path: Path) -> None:
    save_quantized(tmp_path)
    config = read(tmp_path, first("gpt_oss"))
    assert weight_bytes(config, 4) == loaded_bytes(tmp_path, config)


_FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
_MXFP4 = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}
_MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336,
    "max_position_embeddings": 32_768, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "vocab_size": 32_000, "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40_960, "num_attention_heads": 32, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "num_experts": 128, "head_dim": 128, "moe_intermediate_size": 768, "vocab_size": 151_936,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18_432, "first_k_dense_replace": 3, "kv_lora_rank": 512, "max_position_embeddings": 163_840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "routed_scaling_factor": 2.5, "topk_group": 4, "vocab_size": 129_280,
    "torch_dtype": "bfloat16", "quantization_config": _FP8,
}  # fmt: skip
_GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64,
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "vocab_size": 201_088,
    "max_position_embeddings": 131_072, "quantization_config": _MXFP4,
}  # fmt: skip
_SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202_048,
        "max_position_embeddings": 10_485_760, "rope_theta": 500_000.0,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip
# config.json as published, and the billions of parameters in the model's report: all of them, and those of a token.
PUBLISHED: dict[str, tuple[dict[str, Any], float, float]] = {
    "Mixtral-8x7B": (_MIXTRAL, 46.7, 12.9),
    "Qwen3-30B-A3B": (_QWEN3, 30.5, 3.3),
    "DeepSeek-V3": (_DEEPSEEK, 671, 37),
    "gpt-oss-20b": (_GPT_OSS, 20.9, 3.6),
    "Llama-4-Scout": (_SCOUT, 109, 17),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_met(name: str, tmp_path: Path) -> None:
    values, total, active = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = find_model(EstimateConfig(model=str(tmp_path)))
    assert num_parameters(config) / 1e9 == pytest.approx(total, rel=0.015)
    counted = num_active_parameters(config)
    if name == "gpt-oss-20b":  # OpenAI leaves the embeddings out
        counted -= config.vocab_size * config.hidden_size
    assert counted / 1e9 == pytest.approx(active, rel=0.02)
    assert config.dtype == "bfloat16"


def test_gpus_hold_experts_in_floats(tmp_path: Path) -> None:
    config, _ = describe(tmp_path, first("mixtral"))
    whole, quantized = (estimate(config, EstimateConfig(quantization=name)) for name in (None, "int8-weight-only"))
    of_experts = sum(math.prod(config.parameters[name]) for name in config.declaration.of_experts)
    assert 2 * of_experts / 1e9 < quantized.weight_gb < whole.weight_gb
    assert any("GPUs compute experts with floats" in note for note in quantized.notes)


def test_what_a_device_does_not_compute_with_takes_the_memory_of_floats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_GPT_OSS))
    result = estimate(find_model(EstimateConfig(model=str(tmp_path))), EstimateConfig())
    assert result.weight_gb == pytest.approx(2 * 20.9, rel=0.01)
    assert result.cpu_weight_gb is not None
    assert result.cpu_weight_gb < 20  # half a byte for each number of the experts, and 4 bytes for the others
    assert main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "GptOssForCausalLM: 20.9 billion parameters (4.19 billion active per token)" in shown
    assert "It runs with Quire's own code." in shown
    assert "GPUs do not compute with all of the quantized weights" in shown
    assert "CPUs do not compute" not in shown
