"""Llama (Touvron et al., 2023) and the families that share its forward pass: attention with rotary positions and a
gated MLP, each after an RMSNorm, on a residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.decoders.llama_families import FAMILIES, Family, layer_windows, layers_with_rope, read_bias
from services.worker.models.layers import TokenEmbedding
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads, Layer, attend, norms_after

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import AttentionBatch, KVPages


@dataclass(frozen=True, slots=True)
class LayerConfig:
    sliding_window: int | None  # tokens that a query sees, itself included
    use_rope: bool


@dataclass(frozen=True, slots=True)
class LlamaConfig(NetworkConfig):
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    fused_projections: bool
    rope: RopeConfig
    layers: tuple[LayerConfig, ...]


class Llama:
    """See `Network`."""

    def __init__(self, config: LlamaConfig, build: Build) -> None:
        self._config, self._ops = config, build.ops
        vocab, hidden = config.vocab_size, config.hidden_size
        tokens = build.linear(Matrix("model.embed_tokens", vocab, hidden))
        self._embedding = TokenEmbedding(build.ops, tokens)
        self._layers = [self._layer(layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        self._norm = build.vector("model.norm.weight", hidden)
        self._head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        self._run_layers = build.fuse_layers(self._layers, self._norm) or self._run_one_by_one

    def _layer(self, layer: LayerConfig, build: Build) -> Layer:
        c = self._config
        hidden, inner, heads = (
            c.hidden_size,
            c.intermediate_size,
            Heads(c.num_heads, c.num_kv_heads, c.head_dim, c.head_dim),
        )
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        attention, mlp = build.inside("self_attn"), build.inside("mlp")
        qkv = (
            {"qkv_proj": queries + 2 * keys}
            if c.fused_projections
            else {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        )
        gate_up = {"gate_up_proj": 2 * inner} if c.fused_projections else {"gate_proj": inner, "up_proj": inner}
        build.attention(heads)
        return Layer(
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            rms_norm_eps=c.rms_norm_eps,
            rotation=build.rotation(c.rope) if layer.use_rope else None,
            form=AttentionForm(c.head_dim**-0.5, sliding_window=layer.sliding_window),
            activation=Activation.SILU,
            input_norm=build.vector("input_layernorm.weight", hidden),
            qkv=attention.linear(*(Matrix(name, rows, hidden, c.qkv_bias) for name, rows in qkv.items())),
            q_norm=attention.vector("q_norm.weight", c.head_dim) if c.qk_norm else None,
            k_norm=attention.vector("k_norm.weight", c.head_dim) if c.qk_norm else None,
            output=attention.linear(Matrix("o_proj", hidden, queries, c.output_bias)),
            post_attention_norm=build.vector("post_attention_layernorm.weight", hidden),
            gate_up=mlp.linear(*(Matrix(name, rows, hidden, c.mlp_bias) for name, rows in gate_up.items())),
            down=mlp.linear(Matrix("down_proj", hidden, inner, c.mlp_bias)),
        )

    def hidden_states(self, step: Step) -> Tensor:
        """See `Network`."""
        residual = self._embedding(step)  # [num_tokens, hidden]
        x = self._ops.rms_norm(residual, self._layers[0].input_norm, self._config.rms_norm_eps)
        return self._run_layers(x, residual, step.batch, step.pages, step.wanted)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        return self._head(hidden_states)

    def _run_one_by_one(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], wanted: Tensor
    ) -> Tensor:
        """See `RunLayers`."""
        ops, eps = self._ops, self._config.rms_norm_eps
        following = norms_after(self._layers, self._norm)
        for index, layer in enumerate(self._layers):
            x = attend(ops, layer, layer.qkv(x), batch, pages[index])
            if index == len(self._layers) - 1:
                # From here on only the wanted tokens are needed.
                x, residual = x[wanted], residual[wanted]
            x = ops.add_rms_norm(layer.output(x), residual, layer.post_attention_norm, eps)
            x = layer.down(ops.gated_activation(layer.gate_up(x), layer.activation))
            x = ops.add_rms_norm(x, residual, following[index], eps)
        return x


def read(architecture: str, config: Fields) -> LlamaConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    family = FAMILIES[architecture]
    _refuse_unsupported(config, family)
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
    rope = read_rope(config, head_dim, theta=family.rope_theta, parameters=family.rope_parameters)
    if rope.rotary_dim != head_dim and not family.has_partial_rope:
        raise ModelError(f"{config.where} sets partial_rotary_factor, which is not supported for {architecture}")
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS)),
        tie_word_embeddings=config.flag("tie_word_embeddings", family.tie_word_embeddings),
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", family.rms_norm_eps, above=0, high=1),
        qkv_bias=read_bias(family.qkv_bias, config),
        output_bias=read_bias(family.output_bias, config),
        mlp_bias=read_bias(family.mlp_bias, config),
        qk_norm=family.qk_norm,
        fused_projections=family.fused_projections,
        rope=rope,
        layers=tuple(LayerConfig(window, has_rope) for window, has_rope in zip(windows, use_rope, strict=True)),
    )


def _refuse_unsupported(config: Fields, family: Family) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{config.where}: the model has {activation} activations; only silu is supported")
    for key in family.unsupported_keys:
        if config.values.get(key):
            raise ModelError(f"{config.where} sets {key}, which is not supported")


# Embedding models such as Qwen3-Embedding leave out the prefix.
ARCHITECTURES: Mapping[str, Architecture[LlamaConfig]] = dict.fromkeys(
    FAMILIES, Architecture(read, Llama, base="model.")
)
