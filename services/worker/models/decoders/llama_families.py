"""The families of decoders that share Llama's forward pass (`llama.py`), and how each differs from Llama."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from services.worker.models.reading import read_layer_types


class Windowed(Enum):
    """Which layers have a sliding window."""

    NONE = auto()
    ALL = auto()
    # TYPED: layer_types in config.json names the layers with a window. If layer_types is missing, the part of the name
    # after ELSE applies.
    TYPED_ELSE_ALL = auto()
    TYPED_ELSE_LAST = auto()  # if use_sliding_window is set, layers from max_window_layers on; otherwise no layer
    TYPED_ELSE_WITHOUT_ROPE = auto()  # if use_sliding_window is set, layers without RoPE; otherwise no layer
    TYPED_ELSE_THREE_OF_FOUR = auto()  # all layers but the first, the fifth, ...


# Whether a projection has a bias: True, False, a key in config.json (default: False), or a key and its default.
Bias = bool | str | tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Family:
    """One family of decoders. Fields that are named like keys of config.json hold the values for models whose
    config.json leaves those keys out. They are the defaults of the family's configuration class in transformers."""

    qkv_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    qk_norm: bool = False
    # Whether the checkpoint has one matrix for q, k and v together, and one for gate and up.
    fused_projections: bool = False
    default_window: int | None = None
    windowed_layers: Windowed = Windowed.NONE
    head_dim: int | None = None
    # Every n-th layer has no RoPE; None: all layers have RoPE.
    no_rope_interval: int | None = None
    rope_theta: float = 10_000.0
    rope_parameters: Mapping[str, Any] | None = None
    has_partial_rope: bool = False  # whether partial_rotary_factor can be set
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    # Keys of config.json that would change the forward pass. A model that sets such a key is refused; no published
    # model of the family sets one.
    unsupported_keys: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "MistralForCausalLM": Family(default_window=4096, windowed_layers=Windowed.ALL),
    "MinistralForCausalLM": Family(default_window=4096, windowed_layers=Windowed.TYPED_ELSE_ALL),
    "Qwen2ForCausalLM": Family(qkv_bias=True, default_window=4096, windowed_layers=Windowed.TYPED_ELSE_LAST),
    "Qwen3ForCausalLM": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        default_window=4096,
        windowed_layers=Windowed.TYPED_ELSE_LAST,
        head_dim=128,
    ),
    "SmolLM3ForCausalLM": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        windowed_layers=Windowed.TYPED_ELSE_WITHOUT_ROPE,
        no_rope_interval=4,
        rope_theta=2_000_000.0,
        tie_word_embeddings=True,
    ),
    "SeedOssForCausalLM": Family(
        qkv_bias=("attention_bias", True), output_bias="attention_out_bias", mlp_bias="mlp_bias", head_dim=128
    ),
    "CwmForCausalLM": Family(
        mlp_bias="mlp_bias",
        default_window=8192,
        windowed_layers=Windowed.TYPED_ELSE_THREE_OF_FOUR,
        head_dim=128,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        rms_norm_eps=1e-5,
    ),
    "Emu3ForCausalLM": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-5,
    ),
    "Phi3ForCausalLM": Family(
        fused_projections=True, windowed_layers=Windowed.ALL, has_partial_rope=True, rms_norm_eps=1e-5
    ),
    # In transformers, the next two families have configuration classes of their own, but use Llama's model classes.
    "InternLM3ForCausalLM": Family(
        qkv_bias="qkv_bias", output_bias="bias", mlp_bias="bias", head_dim=128, rms_norm_eps=1e-5
    ),
    "IQuestCoderForCausalLM": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        head_dim=128,
        rms_norm_eps=1e-5,
        unsupported_keys=("clip_qkv", "use_sliding_window"),
    ),
}


def read_bias(bias: Bias, config: Fields) -> bool:
    if isinstance(bias, bool):
        return bias
    key, default = bias if isinstance(bias, tuple) else (bias, False)
    return config.flag(key, default)


def layers_with_rope(family: Family, config: Fields, num_layers: int) -> list[bool]:
    if family.no_rope_interval is None:
        return [True] * num_layers
    flags = config.items("no_rope_layers", num_layers)
    if flags is None:
        interval = config.count("no_rope_layer_interval", MAX_LAYERS, family.no_rope_interval)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    return [bool(flag) for flag in flags]


def layer_windows(family: Family, config: Fields, rope: list[bool]) -> list[int | None]:
    """Returns each layer's sliding window in tokens; None for a layer without one."""
    kind = family.windowed_layers
    # As in transformers, a missing key means the family's default, and null means no window.
    is_given = "sliding_window" in config.values
    window = config.optional_count("sliding_window", MAX_POSITIONS, low=0) if is_given else family.default_window
    optional = kind in (Windowed.TYPED_ELSE_LAST, Windowed.TYPED_ELSE_WITHOUT_ROPE)
    types = None
    if kind not in (Windowed.NONE, Windowed.ALL):
        types = read_layer_types(config, "layer_types", len(rope), "sliding_attention", "full_attention")
    if kind is Windowed.NONE or not window or (optional and not config.flag("use_sliding_window")):
        return [None] * len(rope)
    if types is not None:
        windowed = [layer_type == "sliding_attention" for layer_type in types]
    elif kind is Windowed.TYPED_ELSE_LAST:
        first = config.count("max_window_layers", MAX_LAYERS, 28, low=0)
        windowed = [layer >= first for layer in range(len(rope))]
    elif kind is Windowed.TYPED_ELSE_WITHOUT_ROPE:
        windowed = [not has_rope for has_rope in rope]
    elif kind is Windowed.TYPED_ELSE_THREE_OF_FOUR:
        windowed = [layer % 4 != 0 for layer in range(len(rope))]
    else:
        windowed = [True] * len(rope)
    return [window if has_window else None for has_window in windowed]
