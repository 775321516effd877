"""Llama 4 (Meta, 2025): most layers see only their own chunk of the sequence; the others have no positions.

Layers with positions norm queries and keys after the rotation. The others scale queries by their position (Nakanishi,
2025). In some or all layers, experts stand beside an MLP that all tokens share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    Block,
    PreNormBlock,
    RMSNorm,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import (
    MAX_EXPERTS,
    MAX_FACTOR,
    read_activation,
    read_heads,
    read_layer_set,
    read_layer_types,
)
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerConfig:
    has_rope: bool
    chunk: int | None  # tokens of a chunk; a query sees the keys of its own
    has_experts: bool


@dataclass(frozen=True, slots=True)
class Llama4Config(NetworkConfig):
    heads: Heads
    norm_eps: float
    activation: Activation
    attention_bias: bool
    rope: RopeConfig
    qk_norm: bool  # in layers with RoPE
    tunes_temperature: bool  # in layers without RoPE
    temperature_positions: float  # the temperature changes once per so many positions
    temperature_scale: float
    num_experts: int
    num_chosen: int
    dense_size: int  # intermediate size of layers without experts
    layers: tuple[LayerConfig, ...]


class Llama4(Stack):
    """See `Network`."""

    def __init__(self, config: Llama4Config, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: Llama4Config, layer: LayerConfig, build: Build) -> Block:
    norm_1, norm_2 = (
        RMSNorm(build, name, config.hidden_size, config.norm_eps)
        for name in ("input_layernorm", "post_attention_layernorm")
    )
    attention = Attention(config, layer, build.inside("self_attn"))
    feed_forward = build.inside("feed_forward")
    mlp: Callable[[Tensor], Tensor]
    if layer.has_experts:
        mlp = Experts(config, feed_forward)
    else:
        mlp = gated_mlp(config, config.activation, feed_forward, size=config.dense_size)
    return PreNormBlock(norm_1, attention, norm_2, mlp)


class Attention:
    """Attention with rotated positions in a chunk, or without positions over the whole sequence."""

    def __init__(self, config: Llama4Config, layer: LayerConfig, build: Build) -> None:
        hidden, heads, bias = config.hidden_size, config.heads, config.attention_bias
        dim = heads.key_dim
        self._ops, self._config = build.ops, config
        self._qkv = build.linear(*qkv_projections(heads, hidden, has_bias=bias))
        self._output = build.linear(output_projection(heads, hidden, has_bias=bias))
        self._rotation = build.rotation(config.rope, interleaved=True) if layer.has_rope else None
        # The norm of queries and keys has no weight.
        self._ones = build.filled(dim, 1.0) if layer.has_rope and config.qk_norm else None
        self._is_tuned = config.tunes_temperature and not layer.has_rope
        self._form = AttentionForm(dim**-0.5, chunk=layer.chunk)
        self._pages = build.attention(heads)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        ops, heads, pages = self._ops, self._config.heads, step.pages[self._pages]
        keys, values = heads.num_heads, heads.num_heads + heads.num_kv_heads  # where they start
        qkv = self._qkv(x).view(len(x), -1, heads.key_dim)
        q, k, v = qkv[:, :keys], qkv[:, keys:values], qkv[:, values:]
        if self._rotation is not None:
            ops.rope(q, self._rotation, step.batch)
            ops.rope(k, self._rotation, step.batch)
        if self._ones is not None:
            q = ops.rms_norm(q, self._ones, self._config.norm_eps)
            k = ops.rms_norm(k, self._ones, self._config.norm_eps)
        if self._is_tuned:
            q = (q * self._temperatures(step.batch.positions)).to(q.dtype)
        ops.write_kv(k, v, step.batch, pages)
        return self._output(ops.paged_attention(q, step.batch, pages, self._form))

    def _temperatures(self, positions: Tensor) -> Tensor:
        """int32 [num_tokens] -> float32 [num_tokens, 1, 1]"""
        steps = ((positions.float() + 1.0) / self._config.temperature_positions).floor()
        return (steps.log1p() * self._config.temperature_scale + 1.0)[:, None, None]


class Experts:
    """expert(σ(score) · x) of the experts of the highest scores, plus an expert that all tokens share."""

    def __init__(self, config: Llama4Config, build: Build) -> None:
        hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_experts
        self._ops, self._num_chosen = build.ops, config.num_chosen
        self._router = build.linear(Matrix("router", count, hidden))
        gate_up = Matrix("experts.gate_up_proj", 2 * inner, hidden, is_transposed=True)
        down = Matrix("experts.down_proj", hidden, inner, is_transposed=True)
        self._experts = build.experts(
            [[matrix] for matrix in gate_up.stacked(count)],
            down.stacked(count),
            config.activation,
            config.num_chosen,
        )
        self._weight = build.filled(1, 1.0)
        self._shared = gated_mlp(config, config.activation, build.inside("shared_expert"))

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        scores, expert_ids = self._router(x).topk(self._num_chosen, dim=-1)
        scores = self._ops.activation(scores.contiguous(), Activation.SIGMOID)
        mixed = self._shared(x)
        # The score scales the input of an expert and not its output, so each choice has inputs of its own.
        for choice in range(self._num_chosen):
            own = slice(choice, choice + 1)
            mixed = mixed + self._experts(x * scores[:, own], expert_ids[:, own], self._weight.expand(len(x), 1))
        return mixed


def read(architecture: str, config: Fields) -> Llama4Config:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE, 5120)
    heads = read_heads(config, hidden, num_heads=40, num_kv_heads=8, head_dim=128)
    rope = read_rope(config, heads.key_dim, theta=500_000.0)
    num_experts = config.count("num_local_experts", MAX_EXPERTS, 16)
    return Llama4Config(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 202_048),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 8192),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 131_072)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        heads=heads,
        norm_eps=config.number("rms_norm_eps", 1e-5, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        attention_bias=config.flag("attention_bias"),
        rope=rope,
        qk_norm=config.flag("use_qk_norm", True),
        tunes_temperature=_tunes_temperature(config),
        temperature_positions=config.number("floor_scale", 8192.0, above=0, high=MAX_POSITIONS),
        temperature_scale=config.number("attn_scale", 0.1, above=-MAX_FACTOR, high=MAX_FACTOR),
        num_experts=num_experts,
        num_chosen=config.count("num_experts_per_tok", num_experts, 1),
        dense_size=config.count("intermediate_size_mlp", MAX_SIZE, 16_384),
        layers=_read_layers(config),
    )


def _tunes_temperature(config: Fields) -> bool:
    # Early checkpoints have a number, which means true.
    value = config.values.get("attn_temperature_tuning")
    return bool(value) if isinstance(value, int) else config.flag("attn_temperature_tuning", True)


def _read_layers(config: Fields) -> tuple[LayerConfig, ...]:
    num_layers = config.count("num_hidden_layers", MAX_LAYERS, 48)
    interval = config.count("no_rope_layer_interval", MAX_LAYERS, 4)
    # An empty list is that of a checkpoint that keeps the default.
    given = config.items("no_rope_layers", num_layers) if config.values.get("no_rope_layers") else None
    has_rope = [bool(flag) for flag in given or [(index + 1) % interval for index in range(num_layers)]]
    types = read_layer_types(config, "layer_types", num_layers, "chunked_attention", "full_attention")
    if types is None:
        types = ["chunked_attention" if flag else "full_attention" for flag in has_rope]
    chunk = None
    if "chunked_attention" in types:
        is_given = "attention_chunk_size" in config.values
        chunk = config.count("attention_chunk_size", MAX_POSITIONS, None if is_given else 8192)
    step = config.count("interleave_moe_layer_step", MAX_LAYERS, 1)
    sparse = read_layer_set(config, "moe_layers")
    if sparse is None:
        sparse = frozenset(range(step - 1, num_layers, step))
    return tuple(
        LayerConfig(flag, chunk if kind == "chunked_attention" else None, index in sparse)
        for index, (flag, kind) in enumerate(zip(has_rope, types, strict=True))
    )


ARCHITECTURES: Mapping[str, Architecture[Llama4Config]] = {"Llama4ForCausalLM": Architecture(read, Llama4)}
