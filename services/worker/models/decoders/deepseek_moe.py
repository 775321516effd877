"""The network of DeepSeek-V2 and V3 (DeepSeek-AI, 2024) around an attention of any kind: experts beside shared ones
(DeepSeekMoE: Dai et al., 2024) in all but the first layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    Block,
    ExpertGroups,
    GatedMLP,
    GroupRouter,
    MoE,
    PreNormBlock,
    RMSNorm,
    Stack,
    gated_mlp,
    tokens_and_head,
)
from services.worker.models.network import NetworkConfig
from services.worker.models.reading import MAX_EXPERTS, MAX_FACTOR, read_activation, read_choice, require
from services.worker.models.rope import RopeConfig
from services.worker.models.step import Step
from services.worker.ops import Activation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    num_experts: int
    num_chosen: int
    shared_size: int  # intermediate size of the shared experts, which are one MLP; 0: there are none
    groups: ExpertGroups | None
    by_sigmoid: bool  # whether scores are sigmoids; else they are a softmax
    bias: str | None  # name of the bias that is added to the scores for the choice; None: there is none
    normalizes: bool  # whether the weights of a token's experts are scaled to a sum of 1
    factor: float  # of the weights


class AttentionConfig(Protocol):
    """The attention of one layer."""

    def create(self, hidden_size: int, build: Build) -> Callable[[Tensor, Step], Tensor]:
        """Returns the layer, [num_tokens, hidden] to the same shape. `build`: the scope of its weights."""
        ...


@dataclass(frozen=True, slots=True)
class LayerConfig:
    attention: AttentionConfig
    has_experts: bool


@dataclass(frozen=True, slots=True)
class DeepSeekConfig(NetworkConfig):
    norm_eps: float
    activation: Activation
    dense_size: int  # intermediate size of layers without experts
    mlp_bias: bool  # of dense layers and shared experts
    routing: RoutingConfig | None  # None: no layer has experts
    layers: tuple[LayerConfig, ...]
    left_out: tuple[str, ...]  # scopes of tensors that predict further tokens (DeepSeek-V3, section 2.2)


class DeepSeek(Stack):
    """See `Network`."""

    def __init__(self, config: DeepSeekConfig, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        for scope in config.left_out:
            build.leave_out(scope)
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: DeepSeekConfig, layer: LayerConfig, build: Build) -> Block:
    hidden, inside = config.hidden_size, build.inside("mlp")
    norm_1, norm_2 = (
        RMSNorm(build, name, hidden, config.norm_eps) for name in ("input_layernorm", "post_attention_layernorm")
    )
    attention = layer.attention.create(hidden, build.inside("self_attn"))
    mlp: Callable[[Tensor], Tensor]
    if config.routing is not None and layer.has_experts:
        mlp = _experts(config, config.routing, inside)
    else:
        mlp = _mlp(config, config.dense_size, inside)
    return PreNormBlock(norm_1, attention, norm_2, mlp)


def _experts(config: DeepSeekConfig, routing: RoutingConfig, build: Build) -> MoE:
    hidden, inner, num_experts = config.hidden_size, config.intermediate_size, routing.num_experts
    ops = build.ops

    def sigmoid(logits: Tensor) -> Tensor:
        return ops.activation(logits, Activation.SIGMOID)

    router = GroupRouter(
        sigmoid if routing.by_sigmoid else _softmax,
        routing.num_chosen,
        routing.groups,
        None if routing.bias is None else build.wide_vector(routing.bias, num_experts),
        normalizes=routing.normalizes,
        factor=routing.factor,
    )

    def of_each(name: str, outputs: int, inputs: int) -> list[Matrix]:
        return [Matrix(f"experts.{index}.{name}", outputs, inputs) for index in range(num_experts)]

    return MoE(
        build,
        Matrix("gate", num_experts, hidden),
        router,
        list(zip(of_each("gate_proj", inner, hidden), of_each("up_proj", inner, hidden), strict=True)),
        of_each("down_proj", hidden, inner),
        config.activation,
        _mlp(config, routing.shared_size, build.inside("shared_experts")) if routing.shared_size else None,
    )


def _mlp(config: DeepSeekConfig, size: int, build: Build) -> GatedMLP:
    return gated_mlp(config, config.activation, build, size=size, has_bias=config.mlp_bias)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def read_network(
    config: Fields,
    rope: RopeConfig,
    attention: Sequence[AttentionConfig],
    has_experts: Sequence[bool],
    routing: RoutingConfig | None,
    left_out: tuple[str, ...] = (),
) -> DeepSeekConfig:
    """`attention` and `has_experts`: of each layer; `left_out`: () for scopes with the names of DeepSeek-V3."""
    dense_size = config.count("intermediate_size", MAX_SIZE) if not all(has_experts) else 0
    return DeepSeekConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=config.count("hidden_size", MAX_SIZE),
        intermediate_size=dense_size if routing is None else config.count("moe_intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        norm_eps=config.number("rms_norm_eps", 1e-6, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        dense_size=dense_size,
        mlp_bias=config.flag("mlp_bias"),
        routing=routing,
        layers=tuple(map(LayerConfig, attention, has_experts)),
        left_out=left_out or _read_left_out(config, len(has_experts)),
    )


def _read_left_out(config: Fields, num_layers: int) -> tuple[str, ...]:
    """Returns the scopes of the layers after the last one."""
    num_further = config.count("num_mtp_layers", MAX_LAYERS, 1, low=0)
    num_further = config.count("num_nextn_predict_layers", MAX_LAYERS, num_further, low=0)
    return tuple(f"model.layers.{num_layers + index}" for index in range(num_further))


def read_experts_from(config: Fields, num_layers: int) -> list[bool]:
    """Returns which layers have experts: those from `first_k_dense_replace` on."""
    if config.count("moe_layer_freq", MAX_LAYERS, 1) != 1:
        raise config.wrong("moe_layer_freq", "1: experts in all layers from first_k_dense_replace on")
    first = config.count("first_k_dense_replace", MAX_LAYERS, low=0)
    return [index >= first for index in range(num_layers)]


def read_v2_routing(config: Fields) -> RoutingConfig:
    require(config, "norm_topk_prob", value=False)  # DeepSeek's code and transformers differ when it is true
    method = read_choice(config, "topk_method", "greedy", "group_limited_greedy")
    read_choice(config, "scoring_func", "softmax")
    num_experts = config.count("n_routed_experts", MAX_EXPERTS)
    groups = None if method == "greedy" else _read_groups(config, num_experts, num_best=1)
    return _read_routing(config, num_experts, groups, is_v3=False, normalizes=False)


def read_v3_routing(config: Fields) -> RoutingConfig:
    read_choice(config, "topk_method", "noaux_tc")
    read_choice(config, "scoring_func", "sigmoid", "noaux_tc")  # dots.llm1 gives it the method's name
    num_experts = config.count("n_routed_experts", MAX_EXPERTS)
    groups = _read_groups(config, num_experts, num_best=2)
    return _read_routing(config, num_experts, groups, is_v3=True, normalizes=config.flag("norm_topk_prob"))


def _read_routing(
    config: Fields, num_experts: int, groups: ExpertGroups | None, *, is_v3: bool, normalizes: bool
) -> RoutingConfig:
    candidates = num_experts if groups is None else groups.num_chosen * (num_experts // groups.num_groups)
    num_shared = config.optional_count("n_shared_experts", MAX_EXPERTS) or 0
    return RoutingConfig(
        num_experts=num_experts,
        num_chosen=config.count("num_experts_per_tok", candidates),
        shared_size=num_shared * config.count("moe_intermediate_size", MAX_SIZE),
        groups=groups,
        by_sigmoid=is_v3,
        bias="gate.e_score_correction_bias" if is_v3 else None,
        normalizes=normalizes,
        factor=config.number("routed_scaling_factor", 1.0, above=0, high=MAX_FACTOR),
    )


def _read_groups(config: Fields, num_experts: int, num_best: int) -> ExpertGroups | None:
    num_groups = config.count("n_group", num_experts)
    if num_experts % num_groups or num_experts // num_groups < num_best:
        raise config.wrong("n_group", f"a divisor of {num_experts} experts, with at least {num_best} in each group")
    num_chosen = config.count("topk_group", num_groups)
    return None if num_chosen == num_groups else ExpertGroups(num_groups, num_chosen, num_best)
