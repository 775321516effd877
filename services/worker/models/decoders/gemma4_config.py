"""Reads the configuration of Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.network import NetworkConfig
from services.worker.models.reading import MAX_EXPERTS, MAX_FACTOR, read_activation, read_layer_types
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation

_TYPES = ("full_attention", "sliding_attention")
_ROPE: Mapping[str, Any] = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}


@dataclass(frozen=True, slots=True)
class LayerConfig:
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    sliding_window: int | None  # tokens that a query sees, itself included
    values_are_keys: bool  # whether the projection of keys gives the values, too
    shared_pages: int | None  # the layer whose keys and values it reads; None: it has its own
    mlp_size: int


@dataclass(frozen=True, slots=True)
class Gemma4Config(NetworkConfig):
    num_heads: int
    norm_eps: float
    activation: Activation
    attention_bias: bool
    logits_cap: float | None
    input_size: int  # of the input of each layer; 0: layers have none
    input_vocab_size: int
    padding_id: int  # whose layer inputs are those of tokens with given embeddings
    num_experts: int  # 0: there are none
    num_chosen: int
    expert_size: int
    layers: tuple[LayerConfig, ...]


def read(architecture: str, config: Fields) -> Gemma4Config:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_unified = architecture == "Gemma4UnifiedForCausalLM"
    if config.values.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise ModelError(f"{config.where} sets use_bidirectional_attention, which is not supported")
    vocab_size = config.count("vocab_size", MAX_VOCAB_SIZE, 262_144)
    has_experts = not is_unified and config.flag("enable_moe_block")
    num_experts = config.count("num_experts", MAX_EXPERTS) if has_experts else 0
    layers = _read_layers(config, is_unified=is_unified)
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 262_144 if is_unified else 131_072)
    return Gemma4Config(
        vocab_size=vocab_size,
        hidden_size=config.count("hidden_size", MAX_SIZE, 2304),
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 9216),
        max_model_len=min(layer.rope.max_model_len(positions) for layer in layers),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_heads=config.count("num_attention_heads", MAX_HEADS, 8),
        norm_eps=config.number("rms_norm_eps", 1e-6, above=0, high=1),
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        attention_bias=config.flag("attention_bias"),
        logits_cap=_read_cap(config),
        input_size=0 if is_unified else config.count("hidden_size_per_layer_input", MAX_SIZE, 256, low=0),
        input_vocab_size=config.count("vocab_size_per_layer_input", MAX_VOCAB_SIZE, 262_144, low=vocab_size),
        padding_id=config.optional_count("pad_token_id", vocab_size - 1, low=0) or 0,
        num_experts=num_experts,
        num_chosen=config.count("top_k_experts", num_experts) if has_experts else 0,
        expert_size=config.count("moe_intermediate_size", MAX_SIZE) if has_experts else 0,
        layers=layers,
    )


def _read_cap(config: Fields) -> float | None:
    name = "final_logit_softcapping"
    return None if config.values.get(name) is None else config.number(name, 0.0, above=0, high=MAX_FACTOR)


def _read_layers(config: Fields, *, is_unified: bool) -> tuple[LayerConfig, ...]:
    num_layers = config.count("num_hidden_layers", MAX_LAYERS, 30)
    types = read_layer_types(config, "layer_types", num_layers, *_TYPES)
    if types is None:
        types = [_TYPES[(i + 1) % 6 != 0] for i in range(num_layers)]
    types = [*types[:-1], "full_attention"]  # the last layer is always of this type
    num_shared = config.count("num_kv_shared_layers", num_layers - 1, 0, low=0)
    own = types[: num_layers - num_shared]
    if not set(types) <= set(own):
        raise config.wrong("num_kv_shared_layers", "a number that leaves a layer of each type with keys of its own")
    # The last layer of a type with keys of its own lends them to later ones.
    lenders = {kind: index for index, kind in enumerate(own)}
    window = config.count("sliding_window", MAX_POSITIONS, 1024 if is_unified else 512)
    inner, is_wide = config.count("intermediate_size", MAX_SIZE, 9216), config.flag("use_double_wide_mlp")
    ropes, own_values, layers = _read_ropes(config), _read_own_values(config, num_layers), list[LayerConfig]()
    for index, kind in enumerate(types):
        is_full, is_shared = kind == "full_attention", index >= len(own)
        num_kv_heads, head_dim = _read_heads(config, own_values, index, is_full=is_full)
        layer = LayerConfig(
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope=read_rope(ropes[kind], head_dim),
            sliding_window=None if is_full else window,
            values_are_keys=is_full and config.flag("attention_k_eq_v"),
            shared_pages=lenders[kind] if is_shared else None,
            mlp_size=inner * 2 if is_wide and is_shared else inner,
        )
        if is_shared and (num_kv_heads, head_dim) != (
            layers[lenders[kind]].num_kv_heads,
            layers[lenders[kind]].head_dim,
        ):
            raise ModelError(f"{config.where}: layer {index} has other heads than the layer whose keys it reads")
        layers.append(layer)
    return tuple(layers)


def _read_ropes(config: Fields) -> dict[str, Fields]:
    parts = config.parts("rope_parameters", _TYPES)
    if parts is None:
        parts = [Fields({**config.values, "rope_parameters": _ROPE[kind]}, config.where) for kind in _TYPES]
    return dict(zip(_TYPES, parts, strict=True))


def _read_heads(
    config: Fields, own_values: Sequence[Fields | None] | None, index: int, *, is_full: bool
) -> tuple[int, int]:
    """Returns the number of KV heads of a layer, and the size of its heads. transformers 5 writes what differs between
    layers to `per_layer_config` (`own_values`); published checkpoints have keys for layers without a window."""
    heads, dim = "num_key_value_heads", "head_dim"
    values, where = {heads: config.values.get(heads), dim: config.values.get(dim)}, config.where
    if own_values is not None:
        if (of_layer := own_values[index]) is not None:
            unknown = sorted(of_layer.values.keys() - {heads, dim})
            if unknown:
                raise ModelError(f"{of_layer.where} sets {unknown[0]}, which is not supported")
            values, where = {**values, **of_layer.values}, of_layer.where
    elif is_full:
        values[dim] = config.count("global_head_dim", MAX_HEAD_DIM, 512)
        if config.flag("attention_k_eq_v") and config.values.get("num_global_key_value_heads") is not None:
            values[heads] = config.values["num_global_key_value_heads"]
    num_heads = config.count("num_attention_heads", MAX_HEADS, 8)
    own = Fields(values, where)
    num_kv_heads = own.count(heads, MAX_HEADS, 4)
    if num_heads % num_kv_heads:
        raise own.wrong(heads, f"a divisor of num_attention_heads, {num_heads}")
    return num_kv_heads, own.count(dim, MAX_HEAD_DIM, 256)


def _read_own_values(config: Fields, num_layers: int) -> list[Fields | None] | None:
    """Returns what `per_layer_config` says of each layer, and None for a layer that it does not name. Returns None if
    config.json does not have it."""
    if "per_layer_config" not in config.values:
        return None
    layers = config.nested("per_layer_config") or Fields({}, config.where)
    # transformers pads the layers' numbers with zeros, so that they are sorted.
    names = {int(name): name for name in layers.values if name.isdecimal()}
    return [layers.nested(names[index]) if index in names else None for index in range(num_layers)]
