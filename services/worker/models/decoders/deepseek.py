"""DeepSeek-V2 and V3 (DeepSeek-AI, 2024): multi-head latent attention, and experts beside shared ones in all but the
first layers. Kimi K2, GLM-4.7-Flash and Youtu-LLM share the network. So does GLM-4.5 with attention of another kind
(`glm_moe.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    Compressed,
    ExpertGroups,
    GatedMLP,
    GroupRouter,
    LatentAttention,
    MoE,
    RMSNorm,
    Stack,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_EXPERTS, read_activation, require
from services.worker.models.rope import MAX_FACTOR, RopeConfig, read_rope, read_score_factor
from services.worker.models.step import Step
from services.worker.ops import Activation

if TYPE_CHECKING:
    from torch import Tensor

_LATENT_EPS = 1e-6  # of the norms of compressed queries and latent vectors, whatever config.json says of other norms


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
    """Sizes of one layer's attention."""

    def create(self, hidden_size: int, build: Build) -> Callable[[Tensor, Step], Tensor]: ...


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
        vocab, hidden = config.vocab_size, config.hidden_size
        tokens = build.linear(Matrix("model.embed_tokens", vocab, hidden))
        blocks = [Block(config, layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        for scope in config.left_out:
            build.leave_out(scope)
        norm = RMSNorm(build, "model.norm", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: DeepSeekConfig, layer: LayerConfig, build: Build) -> None:
        hidden, mlp = config.hidden_size, build.inside("mlp")
        self._norm_1 = RMSNorm(build, "input_layernorm", hidden, config.norm_eps)
        self._attention = layer.attention.create(hidden, build.inside("self_attn"))
        self._norm_2 = RMSNorm(build, "post_attention_layernorm", hidden, config.norm_eps)
        self._mlp: Callable[[Tensor], Tensor]
        if config.routing is not None and layer.has_experts:
            self._mlp = _experts(config, config.routing, mlp)
        else:
            self._mlp = _mlp(config, config.dense_size, mlp)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._mlp(self._norm_2(x))


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
    hidden, bias = config.hidden_size, config.mlp_bias
    gate_up = Matrix("gate_proj", size, hidden, bias), Matrix("up_proj", size, hidden, bias)
    return GatedMLP(build, gate_up, Matrix("down_proj", hidden, size, bias), config.activation)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """See `AttentionConfig` and `LatentAttention`."""

    num_heads: int
    key_dim: int  # elements of a key that are not rotated
    value_dim: int
    latent_dim: int
    query_dim: int | None  # of compressed queries; None: queries are not compressed
    bias: bool
    rope: RopeConfig
    interleaved: bool
    scale: float  # of scores

    def create(self, hidden_size: int, build: Build) -> LatentAttention:
        rotary, heads = self.rope.rotary_dim, self.num_heads
        queries: Callable[[Tensor], Tensor]
        num_queries = heads * (self.key_dim + rotary)
        if self.query_dim is None:
            queries = build.linear(Matrix("q_proj", num_queries, hidden_size))
        else:
            down = Matrix("q_a_proj", self.query_dim, hidden_size, self.bias)
            norm = RMSNorm(build, "q_a_layernorm", self.query_dim, _LATENT_EPS)
            queries = Compressed(build, down, norm, Matrix("q_b_proj", num_queries, self.query_dim))
        return LatentAttention(
            build,
            heads,
            self.key_dim,
            self.latent_dim,
            queries,
            Matrix("kv_a_proj_with_mqa", self.latent_dim + rotary, hidden_size, self.bias),
            RMSNorm(build, "kv_a_layernorm", self.latent_dim, _LATENT_EPS),
            Matrix("kv_b_proj", heads * (self.key_dim + self.value_dim), self.latent_dim),
            Matrix("o_proj", hidden_size, heads * self.value_dim, self.bias),
            build.rotation(self.rope, interleaved=self.interleaved),
            rotary,
            self.scale,
        )


def read(architecture: str, given: Fields) -> DeepSeekConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    config = Fields({**_DEFAULTS[architecture], **given.values}, given.where)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    attention = _read_latent_sizes(config, is_v2=architecture == "DeepseekV2ForCausalLM")
    if architecture == "YoutuForCausalLM":
        return read_network(config, attention.rope, [attention] * num_layers, [False] * num_layers, None)
    if architecture == "Glm4MoeLiteForCausalLM":
        types = config.items("mlp_layer_types", num_layers) or ["dense"] + ["sparse"] * (num_layers - 1)
        if any(kind not in ("dense", "sparse") for kind in types):
            raise config.wrong("mlp_layer_types", "dense or sparse for each layer")
        has_experts = [kind == "sparse" for kind in types]
    else:
        has_experts = read_experts_from(config, num_layers)
    routing = _read_v2_routing(config) if architecture == "DeepseekV2ForCausalLM" else read_v3_routing(config)
    return read_network(config, attention.rope, [attention] * num_layers, has_experts, routing)


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


def _read_latent_sizes(config: Fields, *, is_v2: bool) -> LatentSizes:
    num_heads = config.count("num_attention_heads", MAX_HEADS)
    if config.count("num_key_value_heads", MAX_HEADS, num_heads) != num_heads:
        raise config.wrong("num_key_value_heads", f"num_attention_heads, {num_heads}: latent attention has no groups")
    key_dim, rotary_dim = (config.count(name, MAX_HEAD_DIM) for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    rope = read_rope(config, rotary_dim)
    if rope.rotary_dim != rotary_dim:
        raise ModelError(f"{config.where} sets partial_rotary_factor, which is not supported with qk_rope_head_dim")
    if is_v2:
        require(config, "rope_interleave", value=True)
    return LatentSizes(
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=config.count("v_head_dim", MAX_HEAD_DIM),
        latent_dim=config.count("kv_lora_rank", MAX_HEAD_DIM),
        query_dim=config.optional_count("q_lora_rank", MAX_SIZE),
        bias=config.flag("attention_bias"),
        rope=rope,
        interleaved=config.flag("rope_interleave", True),
        scale=(key_dim + rotary_dim) ** -0.5 * read_score_factor(config, rope),
    )


def _read_v2_routing(config: Fields) -> RoutingConfig:
    require(config, "norm_topk_prob", value=False)  # DeepSeek's code and transformers differ when it is true
    method = _read_choice(config, "topk_method", "greedy", ("greedy", "group_limited_greedy"))
    _read_choice(config, "scoring_func", "softmax", ("softmax",))
    num_experts = config.count("n_routed_experts", MAX_EXPERTS)
    groups = None if method == "greedy" else _read_groups(config, num_experts, num_best=1)
    return _read_routing(config, num_experts, groups, is_v3=False, normalizes=False)


def read_v3_routing(config: Fields) -> RoutingConfig:
    _read_choice(config, "topk_method", "noaux_tc", ("noaux_tc",))
    _read_choice(config, "scoring_func", "sigmoid", ("sigmoid", "noaux_tc"))  # dots.llm1 gives it the method's name
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


def _read_choice(config: Fields, key: str, default: str, supported: tuple[str, ...]) -> str:
    value = config.text(key, default)
    if value not in supported:
        raise config.wrong(key, " or ".join(supported))
    return value


# Defaults of transformers' configuration classes, for keys that config.json leaves out.
_V3 = {
    "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "norm_topk_prob": True, "max_position_embeddings": 4096,
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DeepseekV2ForCausalLM": {
        "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008, "moe_intermediate_size": 1407,
        "num_hidden_layers": 32, "num_attention_heads": 32, "n_shared_experts": 2, "n_routed_experts": 64,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "first_k_dense_replace": 0, "max_position_embeddings": 2048,
    },
    "DeepseekV3ForCausalLM": _V3,
    "Glm4MoeLiteForCausalLM": {
        **_V3, "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240, "moe_intermediate_size": 1536,
        "num_hidden_layers": 47, "num_attention_heads": 20, "n_routed_experts": 64, "routed_scaling_factor": 1.8,
        "q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 4, "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5,
    },
    "YoutuForCausalLM": {
        **_V3, "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
        "num_attention_heads": 16, "max_position_embeddings": 131_072, "tie_word_embeddings": True,
    },
}  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture[DeepSeekConfig]] = dict.fromkeys(_DEFAULTS, Architecture(read, DeepSeek))
