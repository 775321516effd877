"""A checkpoint's configuration: config.json and generation_config.json, read once into one frozen object.

Read by hand: importing transformers takes seconds. Keys and defaults are those of its configuration classes.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.models.families import ENCODERS, FAMILIES, Family, layer_windows, layers_with_rope, read_bias
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.quantization.checkpoint import read_quantization
from services.worker.quantization.scheme import CheckpointQuantization
from shared.sampling_ranges import RANGES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    sliding_window: int | None  # tokens a query sees, itself included
    use_rope: bool


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What generation_config.json says about sampling; None where it says nothing that a request may ask for."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
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
    dtype: str  # of the checkpoint: float32, bfloat16 or float16
    quantization: CheckpointQuantization | None = None


def read_model_config(directory: Path) -> ModelConfig:
    """Raises ModelError, with a sentence, for a model that cannot be run."""
    config = read_json(directory / "config.json")
    if config is None:
        raise ModelError(f"{directory} has no config.json, so it is no model directory")
    try:
        return parse_model_config(directory, config, read_json(directory / "generation_config.json") or {})
    except KeyError as error:
        raise ModelError(f"{directory / 'config.json'} lacks {error}") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """None if there is no such file. Raises ModelError if it is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object")
    return content


def parse_model_config(directory: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    architecture = next((name for name in config.get("architectures") or [] if name in FAMILIES), None)
    if architecture is None:
        given = ", ".join(config.get("architectures") or []) or "no architecture"
        raise ModelError(
            f"{directory} is {given}, which is not supported; supported are {', '.join(sorted((*FAMILIES, *ENCODERS)))}"
        )
    family = FAMILIES[architecture]
    _refuse_unsupported(directory, config, family)
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", family.head_dim) or config["hidden_size"] // num_heads
    use_rope = layers_with_rope(family, config, config["num_hidden_layers"])
    windows = layer_windows(family, config, use_rope)
    rope = read_rope(config, head_dim, family)
    return ModelConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        rms_norm_eps=config.get("rms_norm_eps", family.rms_norm_eps),
        tie_word_embeddings=config.get("tie_word_embeddings", family.tie_word_embeddings),
        qkv_bias=read_bias(family.qkv_bias, config),
        output_bias=read_bias(family.output_bias, config),
        mlp_bias=read_bias(family.mlp_bias, config),
        qk_norm=family.qk_norm,
        fused_projections=family.fused_projections,
        rope=rope,
        layers=tuple(LayerConfig(window, has_rope) for window, has_rope in zip(windows, use_rope, strict=True)),
        max_model_len=rope.max_model_len(config["max_position_embeddings"]),
        eos_token_ids=_token_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        default_sampling=_defaults(directory, generation),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        quantization=read_quantization(str(directory), config),
    )


def _refuse_unsupported(directory: Path, config: Mapping[str, Any], family: Family) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{directory} has {activation} activations; only silu is supported")
    for key in family.unsupported_keys:
        if config.get(key):
            raise ModelError(f"{directory} sets {key}, which is not supported")


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _defaults(directory: Path, generation: Mapping[str, Any]) -> GenerationDefaults:
    """A default that no request may ask for would fail every request that leaves the field to it, so it is left out."""
    usable = {}
    for name in GenerationDefaults.__dataclass_fields__:
        value = generation.get(name)
        if value is None:
            continue
        if _in_range(name, value):
            usable[name] = value
        else:
            logger.warning(
                "%s: %s is %r, which is not a number %s; it is ignored",
                directory / "generation_config.json", name, value, RANGES[name],
            )  # fmt: skip
    return GenerationDefaults(**usable)


def _in_range(name: str, value: Any) -> bool:
    if isinstance(value, bool) or (name == "top_k" and not isinstance(value, int)):
        return False
    try:
        # As the wire rounds it: a top_p of 1e-50 arrives as 0.
        rounded = value if name == "top_k" else struct.unpack("<f", struct.pack("<f", value))[0]
    except (struct.error, OverflowError):
        return False
    return rounded in RANGES[name]
