"""Qwen2-MoE (Qwen Team, 2024), Qwen3-MoE (2025), the text of Qwen3-VL-MoE, and Mixtral (Jiang et al., 2024): Llama's
layers, in which experts take the place of the MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    Attention,
    Block,
    MoE,
    PreNormBlock,
    RMSNorm,
    SoftmaxRouter,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import (
    MAX_EXPERTS,
    read_activation,
    read_heads,
    read_layer_set,
    read_windows,
    spelling,
)
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


Windows = tuple[int | None, ...]  # of each layer: tokens that a query sees, itself included; None: all before it


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture differs from Qwen3-MoE."""

    scope: str = "mlp"  # of the names of experts
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")  # the gate, then up; or one matrix with both
    down: str = "down_proj"
    is_stacked: bool = False  # whether one tensor stores the matrices of all experts
    expert_size: str = "moe_intermediate_size"  # the key of config.json
    qkv_bias: tuple[str, bool] = ("attention_bias", False)  # the key, and its default
    output_bias: bool = True  # whether the key `attention_bias` counts for the output, too
    qk_norm: bool = True
    always_normalizes: bool = False  # whatever `norm_topk_prob` says
    has_shared_expert: bool = False
    read_windows: Callable[[Fields, int], Windows] = lambda config, num_layers: (None,) * num_layers
    # Values of keys that config.json leaves out, from transformers' configuration class.
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoEConfig(NetworkConfig):
    family: Family
    heads: Heads
    norm_eps: float
    activation: Activation
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    num_experts: int
    num_chosen: int
    normalizes: bool  # whether the weights of a token's experts are scaled to a sum of 1
    dense_size: int  # intermediate size of layers without experts
    shared_size: int  # intermediate size of the shared expert; 0: there is none
    windows: Windows
    has_experts: tuple[bool, ...]  # of each layer


class MoEDecoder(Stack):
    """See `Network`."""

    def __init__(self, config: MoEConfig, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, i, build.inside(f"model.layers.{i}")) for i in range(len(config.windows))]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: MoEConfig, index: int, build: Build) -> Block:
    hidden, heads, eps, family = config.hidden_size, config.heads, config.norm_eps, config.family
    inside = build.inside("self_attn")
    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=config.qkv_bias),
        output_projection(heads, hidden, has_bias=config.output_bias),
        AttentionForm(heads.key_dim**-0.5, sliding_window=config.windows[index]),
        build.rotation(config.rope),
        RMSNorm(inside, "q_norm", heads.key_dim, eps) if family.qk_norm else None,
        RMSNorm(inside, "k_norm", heads.key_dim, eps) if family.qk_norm else None,
    )
    mlp: Callable[[Tensor], Tensor]
    if config.has_experts[index]:
        mlp = _experts(config, build.inside(family.scope))
    else:
        mlp = gated_mlp(config, config.activation, build.inside("mlp"), size=config.dense_size)
    norm_1, norm_2 = (RMSNorm(build, name, hidden, eps) for name in ("input_layernorm", "post_attention_layernorm"))
    return PreNormBlock(norm_1, attention, norm_2, mlp)


class GatedExpert:
    """The expert that all tokens share, times a gate of its own (Qwen2-MoE)."""

    def __init__(self, config: MoEConfig, build: Build) -> None:
        self._ops = build.ops
        inside = build.inside("shared_expert")
        self._mlp = gated_mlp(config, config.activation, inside, size=config.shared_size)
        self._gate = build.linear(Matrix("shared_expert_gate", 1, config.hidden_size))

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        return self._mlp(x) * self._ops.activation(self._gate(x), Activation.SIGMOID)


def _experts(config: MoEConfig, build: Build) -> MoE:
    hidden, inner, family = config.hidden_size, config.intermediate_size, config.family

    def matrices(name: str, outputs: int, inputs: int) -> list[Matrix]:
        """Returns one matrix of each expert."""
        if family.is_stacked:
            # Published checkpoints are transposed. transformers 5 writes other ones.
            return Matrix(f"experts.{name}", outputs, inputs, is_transposed=None).stacked(config.num_experts)
        return [Matrix(f"experts.{index}.{name}", outputs, inputs) for index in range(config.num_experts)]

    gate_up = [matrices(name, 2 * inner // len(family.gate_up), hidden) for name in family.gate_up]
    return MoE(
        build,
        Matrix("gate", config.num_experts, hidden),
        SoftmaxRouter(config.num_chosen, normalizes=config.normalizes),
        list(zip(*gate_up, strict=True)),
        matrices(family.down, hidden, inner),
        config.activation,
        GatedExpert(config, build) if config.shared_size else None,
    )


def read(architecture: str, given: Fields) -> MoEConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    family = _FAMILIES[architecture]
    config = Fields({**family.defaults, **given.values}, given.where)
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    rope = read_rope(config, heads.key_dim)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    # transformers 5 writes the second name, published checkpoints of Qwen have the first.
    experts = spelling(given, "num_experts", "num_local_experts")
    num_experts = given.count(experts, MAX_EXPERTS, family.defaults.get("num_local_experts"))
    return MoEConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count(family.expert_size, MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        family=family,
        heads=heads,
        norm_eps=config.number("rms_norm_eps", 1e-6, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        rope=rope,
        qkv_bias=config.flag(*family.qkv_bias),
        output_bias=family.output_bias and config.flag("attention_bias"),
        num_experts=num_experts,
        num_chosen=config.count("num_experts_per_tok", num_experts),
        normalizes=family.always_normalizes or config.flag("norm_topk_prob"),
        dense_size=config.count("intermediate_size", MAX_SIZE),
        shared_size=config.count("shared_expert_intermediate_size", MAX_SIZE) if family.has_shared_expert else 0,
        windows=family.read_windows(config, num_layers),
        has_experts=_read_sparse_layers(config, num_layers),
    )


def _read_sparse_layers(config: Fields, num_layers: int) -> tuple[bool, ...]:
    """Returns which layers have experts: every `decoder_sparse_step`-th, but those in `mlp_only_layers`."""
    step = config.count("decoder_sparse_step", MAX_LAYERS, 1)
    dense = read_layer_set(config, "mlp_only_layers") or frozenset()
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(num_layers))


def _read_mixtral_windows(config: Fields, num_layers: int) -> Windows:
    return (config.optional_count("sliding_window", MAX_POSITIONS),) * num_layers


def _read_qwen3_windows(config: Fields, num_layers: int) -> Windows:
    return _read_mixtral_windows(config, num_layers) if config.flag("use_sliding_window") else (None,) * num_layers


def _read_qwen2_windows(config: Fields, num_layers: int) -> Windows:
    """Without `layer_types`, every second layer has a window, of those before `max_window_layers`."""
    if not config.flag("use_sliding_window"):
        return (None,) * num_layers
    windows = read_windows(config, num_layers, default=4096, interval=2)
    if config.values.get("layer_types") is not None:
        return windows
    end = config.count("max_window_layers", MAX_LAYERS, 28, low=0)
    return tuple(window if index < end else None for index, window in enumerate(windows))


_QWEN3: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32_768, "sliding_window": 4096,
    "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_local_experts": 128,
}  # fmt: skip
_FAMILIES = {
    "MixtralForCausalLM": Family(
        scope="block_sparse_moe",
        gate_up=("w1", "w3"),
        down="w2",
        expert_size="intermediate_size",
        qk_norm=False,
        always_normalizes=True,
        read_windows=_read_mixtral_windows,
        defaults={
            "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_experts_per_tok": 2, "num_local_experts": 8,
        },
    ),
    "Qwen2MoeForCausalLM": Family(
        qkv_bias=("qkv_bias", True),
        output_bias=False,
        qk_norm=False,
        has_shared_expert=True,
        read_windows=_read_qwen2_windows,
        defaults={
            **_QWEN3, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
            "num_local_experts": 60,
        },
    ),
    "Qwen3MoeForCausalLM": Family(read_windows=_read_qwen3_windows, defaults=_QWEN3),
    # `services/worker/models/text_models.py` has its defaults.
    "Qwen3VLMoeTextModel": Family(gate_up=("gate_up_proj",), is_stacked=True, always_normalizes=True),
}  # fmt: skip
ARCHITECTURES: Mapping[str, Architecture[MoEConfig]] = dict.fromkeys(_FAMILIES, Architecture(read, MoEDecoder))
