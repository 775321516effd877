"""Reads a model's configuration from GGUF metadata, by translating it back to config.json's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEADS, MAX_SIZE, Fields, reading
from services.worker.gguf import FORMATS, ROPE_FACTORS, GGUFFile, GGUFTensor, tensor_name
from services.worker.models import LlamaConfig, ModelConfig, RopeConfig, parse_model_config
from services.worker.quantization import CheckpointQuantization, Targets

# llama.cpp's name of each architecture, and its class in transformers. GGUF files of Mistral models have the
# architecture llama, so they run without a sliding window, as in llama.cpp.
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_config(path: Path) -> ModelConfig:
    """Returns the configuration of a decoder. Raises ModelError if Quire cannot run the model."""
    file = GGUFFile(path)
    if file.architecture not in ARCHITECTURES:
        raise ModelError(
            f"{path} is a GGUF file of architecture {file.architecture}, which is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    if file.setting("expert_count", 0):
        raise ModelError(f"{path} is a mixture of experts, which is not supported")
    with reading(f"the metadata of {path}"):
        config = parse_model_config(path, Fields(_transformers_config(file), str(path)), {})
    network = config.network
    assert isinstance(network, LlamaConfig)
    network = replace(
        network,
        qkv_bias=tensor_name("model.layers.0.self_attn.q_proj.bias") in file.tensors,
        output_bias=tensor_name("model.layers.0.self_attn.o_proj.bias") in file.tensors,
        mlp_bias=tensor_name("model.layers.0.mlp.up_proj.bias") in file.tensors,
        rope=_with_factors(network.rope, file),
    )
    config = config.with_network(network)
    return replace(config, quantization=_read_formats(file, config), dtype=_dtype(file))


def _transformers_config(file: GGUFFile) -> dict[str, Any]:
    """Returns the settings that config.json would contain, from the metadata and the tensors of the GGUF file."""
    hidden_size, num_heads = file.required("embedding_length"), file.required("attention.head_count")
    num_kv_heads = file.setting("attention.head_count_kv", num_heads)
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int):
        raise ModelError(f"{file.path} has layers with different numbers of heads, which is not supported")
    sizes = Fields({"embedding_length": hidden_size, "attention.head_count": num_heads}, str(file.path))
    head_dim = file.setting(
        "attention.key_length",
        max(1, sizes.count("embedding_length", MAX_SIZE) // sizes.count("attention.head_count", MAX_HEADS)),
    )
    if file.setting("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path} has RoPE on only a part of each head, which is not supported")
    return {
        "architectures": [ARCHITECTURES[file.architecture]],
        "vocab_size": _matrix(file, "model.embed_tokens").shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": file.required("feed_forward_length"),
        "num_hidden_layers": file.required("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": file.required("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.required("context_length"),
        "rope_theta": file.setting("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(file),
        "tie_word_embeddings": tensor_name("lm_head") not in file.tensors,
        "eos_token_id": sorted({file.value(f"tokenizer.ggml.{key}") for key in _END_TOKENS} - {None}),
    }


def _rope_scaling(file: GGUFFile) -> Mapping[str, Any] | None:
    kind = file.setting("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = file.setting("rope.scaling.factor", 1.0)
    scaling = {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": file.setting("rope.scaling.original_context_length"),
    }
    if (attention_factor := file.setting("rope.scaling.attn_factor")) is not None:
        # In llama.cpp, attn_factor multiplies YaRN's default, 0.1 ln(factor) + 1. In transformers, attention_factor
        # replaces the default, so it is set to the product.
        scaling["attention_factor"] = attention_factor * (0.1 * math.log(factor) + 1.0)
    return scaling


def _with_factors(rope: RopeConfig, file: GGUFFile) -> RopeConfig:
    factors = file.tensors.get(ROPE_FACTORS)
    if factors is None:
        return rope
    if factors.shape != (rope.rotary_dim // 2,) or factors.kind.name != "F32" or not (factors.data > 0).all():
        raise ModelError(
            f"{ROPE_FACTORS} in {file.path} does not consist of {rope.rotary_dim // 2} positive F32 numbers"
        )
    return replace(rope, frequency_factors=tuple(factors.data.tolist()))


def _read_formats(file: GGUFFile, config: ModelConfig) -> CheckpointQuantization:
    """Returns the weight format of each matrix, which depends on the type of its GGUF tensor. Raises ModelError for a
    type that Quire cannot read."""
    rules = []
    for name, shape in config.parameters.items():
        if len(shape) == 2:
            kind = _tensor(file, name).kind.name
            if kind not in FORMATS:
                raise ModelError(f"{name} in {file.path} is {kind}; supported are {', '.join(FORMATS)}")
            rules.append((Targets((name,)), FORMATS[kind]))
    return CheckpointQuantization("gguf", tuple(rules))


def _dtype(file: GGUFFile) -> str:
    """Returns the type to compute in on a GPU: float32 or float16 if the first layer's matrices have that type,
    otherwise bfloat16."""
    kind = _tensor(file, "model.layers.0.mlp.up_proj").kind.name
    return {"F32": "float32", "F16": "float16"}.get(kind, "bfloat16")


def _matrix(file: GGUFFile, parameter: str) -> GGUFTensor:
    tensor = _tensor(file, parameter)
    if len(tensor.shape) != 2:
        raise ModelError(f"{tensor_name(parameter)} in {file.path} has {len(tensor.shape)} dimensions; expected 2")
    return tensor


def _tensor(file: GGUFFile, parameter: str) -> GGUFTensor:
    name = tensor_name(parameter)
    if name not in file.tensors:
        raise ModelError(f"{file.path} lacks {name}")
    return file.tensors[name]
