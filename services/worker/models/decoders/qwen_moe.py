"""Qwen2-MoE (Qwen Team, 2024), Qwen3-MoE (2025), the text of Qwen3-VL-MoE, and Mixtral (Jiang et al., 2024): Llama's
layers, in which experts take the place of the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import Attention, GatedMLP, MoE, RMSNorm, SoftmaxRouter, Stack
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_EXPERTS, read_activation
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Names:
    """Names of tensors, which differ between families."""

    moe: str
    gate_up: tuple[str, ...]  # the gate, then up; or one matrix with both
    down: str
    is_stacked: bool = False  # whether one tensor stores the matrices of all experts


_QWEN = Names("mlp", ("gate_proj", "up_proj"), "down_proj")
_QWEN3_VL = Names("mlp", ("gate_up_proj",), "down_proj", is_stacked=True)
_MIXTRAL = Names("block_sparse_moe", ("w1", "w3"), "w2")


@dataclass(frozen=True, slots=True)
class MoEConfig(NetworkConfig):
    names: Names
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: Activation
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    num_experts: int
    num_chosen: int
    normalizes: bool  # whether the weights of a token's experts are scaled to a sum of 1
    dense_size: int  # intermediate size of layers without experts
    shared_size: int  # intermediate size of the shared expert; 0: there is none
    windows: tuple[int | None, ...]  # of each layer
    has_experts: tuple[bool, ...]  # of each layer


class MoEDecoder(Stack):
    """See `Network`."""

    def __init__(self, config: MoEConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        tokens = build.linear(Matrix("model.embed_tokens", vocab, hidden))
        blocks = [Block(config, i, build.inside(f"model.layers.{i}")) for i in range(len(config.windows))]
        norm = RMSNorm(build, "model.norm", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: MoEConfig, index: int, build: Build) -> None:
        hidden, dim, bias = config.hidden_size, config.head_dim, config.qkv_bias
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        attention = build.inside("self_attn")
        self._norm_1 = RMSNorm(build, "input_layernorm", hidden, config.norm_eps)
        self._attention = Attention(
            attention,
            Heads(config.num_heads, config.num_kv_heads, dim, dim),
            (
                Matrix("q_proj", queries, hidden, bias),
                Matrix("k_proj", keys, hidden, bias),
                Matrix("v_proj", keys, hidden, bias),
            ),
            Matrix("o_proj", hidden, queries, config.output_bias),
            AttentionForm(dim**-0.5, sliding_window=config.windows[index]),
            build.rotation(config.rope),
            RMSNorm(attention, "q_norm", dim, config.norm_eps) if config.qk_norm else None,
            RMSNorm(attention, "k_norm", dim, config.norm_eps) if config.qk_norm else None,
        )
        self._norm_2 = RMSNorm(build, "post_attention_layernorm", hidden, config.norm_eps)
        if config.has_experts[index]:
            self._mlp: MoE | GatedMLP = _experts(config, build.inside(config.names.moe))
        else:
            self._mlp = _mlp(config, config.dense_size, build.inside("mlp"))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._mlp(self._norm_2(x))


class GatedExpert:
    """The expert that all tokens share, times a gate of its own (Qwen2-MoE)."""

    def __init__(self, config: MoEConfig, build: Build) -> None:
        self._ops = build.ops
        self._mlp = _mlp(config, config.shared_size, build.inside("shared_expert"))
        self._gate = build.linear(Matrix("shared_expert_gate", 1, config.hidden_size))

    def __call__(self, x: Tensor) -> Tensor:
        return self._mlp(x) * self._ops.activation(self._gate(x), Activation.SIGMOID)


def _experts(config: MoEConfig, build: Build) -> MoE:
    hidden, inner, names = config.hidden_size, config.intermediate_size, config.names

    def matrices(name: str, outputs: int, inputs: int) -> list[Matrix]:
        """Returns one matrix of each expert."""
        if names.is_stacked:
            # Published checkpoints are transposed. transformers 5 writes other ones.
            return Matrix(f"experts.{name}", outputs, inputs, is_transposed=None).stacked(config.num_experts)
        return [Matrix(f"experts.{index}.{name}", outputs, inputs) for index in range(config.num_experts)]

    gate_up = [matrices(name, 2 * inner // len(names.gate_up), hidden) for name in names.gate_up]
    return MoE(
        build,
        Matrix("gate", config.num_experts, hidden),
        SoftmaxRouter(config.num_chosen, normalizes=config.normalizes),
        list(zip(*gate_up, strict=True)),
        matrices(names.down, hidden, inner),
        config.activation,
        GatedExpert(config, build) if config.shared_size else None,
    )


def _mlp(config: MoEConfig, size: int, build: Build) -> GatedMLP:
    hidden = config.hidden_size
    gate_up = Matrix("gate_proj", size, hidden), Matrix("up_proj", size, hidden)
    return GatedMLP(build, gate_up, Matrix("down_proj", hidden, size), config.activation)


def read(architecture: str, config: Fields) -> MoEConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_mixtral, is_qwen2 = architecture.startswith("Mixtral"), architecture.startswith("Qwen2")
    is_qwen3_vl = architecture == "Qwen3VLMoeTextModel"
    hidden = config.count("hidden_size", MAX_SIZE)
    num_heads = config.count("num_attention_heads", MAX_HEADS)
    num_kv_heads = config.count("num_key_value_heads", MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    head_dim = config.count("head_dim", MAX_HEAD_DIM, hidden // num_heads)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    rope = read_rope(config, head_dim, theta=1e6 if is_mixtral else 10_000.0)
    inner = config.count("intermediate_size", MAX_SIZE)
    num_experts = config.count("num_experts" if "num_experts" in config.values else "num_local_experts", MAX_EXPERTS)
    sparse_step = config.count("decoder_sparse_step", MAX_LAYERS, 1)
    dense = {layer for layer in config.values.get("mlp_only_layers") or [] if isinstance(layer, int)}
    return MoEConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=inner if is_mixtral else config.count("moe_intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        names=_MIXTRAL if is_mixtral else _QWEN3_VL if is_qwen3_vl else _QWEN,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-5 if is_mixtral else 1e-6, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        rope=rope,
        qkv_bias=config.flag("qkv_bias", True) if is_qwen2 else config.flag("attention_bias"),
        output_bias=not is_qwen2 and config.flag("attention_bias"),
        qk_norm=architecture.startswith("Qwen3"),
        num_experts=num_experts,
        num_chosen=config.count("num_experts_per_tok", num_experts),
        normalizes=is_mixtral or is_qwen3_vl or config.flag("norm_topk_prob"),
        dense_size=inner,
        shared_size=config.count("shared_expert_intermediate_size", MAX_SIZE) if is_qwen2 else 0,
        windows=_windows(config, num_layers, is_mixtral=is_mixtral),
        has_experts=tuple(
            is_mixtral or (index not in dense and (index + 1) % sparse_step == 0) for index in range(num_layers)
        ),
    )


def _windows(config: Fields, num_layers: int, *, is_mixtral: bool) -> tuple[int | None, ...]:
    """Mixtral's window holds for all layers; Qwen's for layers from `max_window_layers` on, if it is turned on."""
    is_on = is_mixtral or config.flag("use_sliding_window")
    window = config.optional_count("sliding_window", MAX_POSITIONS) if is_on else None
    if window is None:
        return (None,) * num_layers
    types = config.items("layer_types", num_layers)
    if types is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = 0 if is_mixtral else config.count("max_window_layers", MAX_LAYERS, 28, low=0)
    return tuple(window if index >= first else None for index in range(num_layers))


ARCHITECTURES: Mapping[str, Architecture[MoEConfig]] = dict.fromkeys(
    ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3VLMoeTextModel"),
    Architecture(read, MoEDecoder),
)
