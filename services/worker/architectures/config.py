"""A decoder's configuration: config.json and generation_config.json, read once into one frozen object.

This module parses the files itself, because importing transformers takes seconds. Keys and defaults are those of
transformers' configuration classes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from services.worker.architectures.families import (
    ENCODERS,
    FAMILIES,
    Family,
    layer_windows,
    layers_with_rope,
    read_bias,
)
from services.worker.architectures.rope import RopeConfig, read_rope
from services.worker.errors import ModelError
from services.worker.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SIZE,
    MAX_VOCAB_SIZE,
    Fields,
    is_finite,
    reading,
    show,
)
from services.worker.json_files import read_json
from services.worker.quantization import CheckpointQuantization, read_quantization
from shared.sampling_ranges import RANGES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    sliding_window: int | None  # number of positions that a token attends to, including its own; None: all
    use_rope: bool


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling defaults from generation_config.json. None: the file has no value, or an invalid one."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    is_encoder: ClassVar[bool] = False

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    fused_projections: bool
    rope: RopeConfig
    layers: tuple[LayerConfig, ...]
    max_model_len: int  # tokens, with RoPE scaling
    eos_token_ids: tuple[int, ...]
    default_sampling: GenerationDefaults
    dtype: str  # float type of the checkpoint: float32, bfloat16 or float16
    quantization: CheckpointQuantization | None = None


def read_model_config(directory: Path) -> ModelConfig:
    """Returns the configuration of a decoder. Raises ModelError if Quire cannot run the model."""
    path = directory / "config.json"
    config = read_json(path)
    if config is None:
        raise ModelError(f"{directory} has no config.json, so it is no model directory")
    with reading(path):
        return parse_model_config(
            directory, Fields(config, str(path)), read_json(directory / "generation_config.json") or {}
        )


def parse_model_config(path: Path, config: Fields, generation: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a decoder. `config`: values of config.json; `generation`: values of
    generation_config.json; `path`: the checkpoint's directory or GGUF file. Raises ModelError if Quire cannot run the
    model, or if a value is far beyond those of published models."""
    architectures = config.texts("architectures")
    architecture = next((name for name in architectures if name in FAMILIES), None)
    if architecture is None:
        given = ", ".join(architectures) or "a model without a named architecture"
        raise ModelError(
            f"{path} is {given}, which is not supported; supported are {', '.join(sorted((*FAMILIES, *ENCODERS)))}"
        )
    family = FAMILIES[architecture]
    _refuse_unsupported(path, config, family)
    num_heads = config.count("num_attention_heads", MAX_HEADS)
    num_kv_heads = config.count("num_key_value_heads", MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    hidden_size, vocab_size = config.count("hidden_size", MAX_SIZE), config.count("vocab_size", MAX_VOCAB_SIZE)
    head_dim = config.count("head_dim", MAX_HEAD_DIM, family.head_dim or max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise ModelError(f"{config.where}: heads have {head_dim} dimensions; RoPE needs an even number")
    use_rope = layers_with_rope(family, config, config.count("num_hidden_layers", MAX_LAYERS))
    windows = layer_windows(family, config, use_rope)
    rope = read_rope(config, head_dim, family)
    max_model_len = rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS))
    if not 1 <= max_model_len <= MAX_POSITIONS:
        raise ModelError(
            f"{config.where}: RoPE scaling gives {max_model_len:,} positions; expected 1 to {MAX_POSITIONS:,}"
        )
    eos = generation.get("eos_token_id", config.values.get("eos_token_id"))
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", family.rms_norm_eps, above=0, high=1),
        tie_word_embeddings=config.flag("tie_word_embeddings", family.tie_word_embeddings),
        qkv_bias=read_bias(family.qkv_bias, config),
        output_bias=read_bias(family.output_bias, config),
        mlp_bias=read_bias(family.mlp_bias, config),
        qk_norm=family.qk_norm,
        fused_projections=family.fused_projections,
        rope=rope,
        layers=tuple(LayerConfig(window, has_rope) for window, has_rope in zip(windows, use_rope, strict=True)),
        max_model_len=max_model_len,
        eos_token_ids=read_token_ids(path, "eos_token_id", eos, vocab_size),
        default_sampling=_defaults(path, generation),
        dtype=read_dtype(config),
        quantization=read_quantization(str(path), config.values),
    )


def read_dtype(config: Fields) -> str:
    """Returns the float type that config.json names; float32 if it names none."""
    return config.text("dtype", config.text("torch_dtype", "float32"))


def _refuse_unsupported(path: Path, config: Fields, family: Family) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{path} has {activation} activations; only silu is supported")
    for key in family.unsupported_keys:
        if config.values.get(key):
            raise ModelError(f"{path} sets {key}, which is not supported")


def read_token_ids(path: Path, name: str, value: object, vocab_size: int) -> tuple[int, ...]:
    """Returns the token ids in `value`, which is one id or a list of ids. Leaves out ids outside the vocabulary. Raises
    ModelError if an id is no integer."""
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise ModelError(f"{path}: {name} is {show(token_id)}; expected a token id or a list of them")
    unknown = [token_id for token_id in ids if not 0 <= token_id < vocab_size]
    if unknown:
        logger.warning(
            "%s: %s names token %s, but the model has %d tokens; the token is ignored",
            path,
            name,
            show(unknown[0]),
            vocab_size,
        )
    return tuple(token_id for token_id in ids if 0 <= token_id < vocab_size)


def _defaults(path: Path, generation: Mapping[str, Any]) -> GenerationDefaults:
    """Returns the valid sampling defaults in generation_config.json. Leaves out invalid ones with a warning, because
    every request that uses such a default would fail."""
    usable = {}
    for name in GenerationDefaults.__dataclass_fields__:
        value = generation.get(name)
        if value is None:
            continue
        if _in_range(name, value):
            usable[name] = value
        else:
            logger.warning(
                "%s: %s is %s, which is not a number %s; this default is ignored",
                path / "generation_config.json", name, show(value), RANGES[name],
            )  # fmt: skip
    return GenerationDefaults(**usable)


def _in_range(name: str, value: Any) -> bool:
    if not is_finite(value) or (name == "top_k" and not isinstance(value, int)):
        return False
    try:
        # Check the value as routers get it: protobuf sends float32, so a top_p of 1e-50 arrives as 0.
        rounded = value if name == "top_k" else struct.unpack("<f", struct.pack("<f", value))[0]
    except (struct.error, OverflowError):
        return False
    return rounded in RANGES[name]
