"""GPT-2 (Radford et al., 2019): learned positions, layer norms before attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, LayerNorm, PositionTable, Stack
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count, require
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GPT2Config(NetworkConfig):
    num_layers: int
    num_heads: int
    norm_eps: float
    activation: Activation
    scales_scores: bool  # by 1 / sqrt(head_dim)
    scales_by_layer: bool  # by 1 / (index of the layer + 1), too


class GPT2(Stack):
    """See `Network`."""

    def __init__(self, config: GPT2Config, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix("wte", vocab, hidden))
        self._positions = PositionTable(inside, "wpe", config.max_model_len, hidden)
        blocks = [Block(config, i, inside.inside(f"h.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "ln_f", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)

    def embed(self, step: Step) -> Tensor:
        """See `Stack`."""
        return super().embed(step) + self._positions(step.batch.positions)


class Block:
    def __init__(self, config: GPT2Config, index: int, build: Build) -> None:
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        dim = hidden // config.num_heads
        scale = (dim**-0.5 if config.scales_scores else 1.0) / (index + 1 if config.scales_by_layer else 1)
        self._norm_1 = LayerNorm(build, "ln_1", hidden, eps)
        self._attention = Attention(
            build.inside("attn"),
            Heads(config.num_heads, config.num_heads, dim, dim),
            (Matrix("c_attn", 3 * hidden, hidden, has_bias=True, is_transposed=True),),
            Matrix("c_proj", hidden, hidden, has_bias=True, is_transposed=True),
            AttentionForm(scale),
        )
        self._norm_2 = LayerNorm(build, "ln_2", hidden, eps)
        self._mlp = MLP(
            build.inside("mlp"),
            Matrix("c_fc", inner, hidden, has_bias=True, is_transposed=True),
            Matrix("c_proj", hidden, inner, has_bias=True, is_transposed=True),
            config.activation,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._mlp(self._norm_2(x))


def read(architecture: str, config: Fields) -> GPT2Config:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    require(config, "add_cross_attention", value=False)
    hidden = config.count("n_embd", MAX_SIZE, 768)
    return GPT2Config(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 50_257),
        hidden_size=hidden,
        intermediate_size=config.count("n_inner", MAX_SIZE, 4 * hidden),
        max_model_len=config.count("n_positions", MAX_POSITIONS, 1024),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_layers=config.count("n_layer", MAX_LAYERS, 12),
        num_heads=read_head_count(config, "n_head", hidden),
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        activation=read_activation(config, "activation_function", "gelu_new"),
        scales_scores=config.flag("scale_attn_weights", True),
        scales_by_layer=config.flag("scale_attn_by_inverse_layer_idx"),
    )


ARCHITECTURES: Mapping[str, Architecture[GPT2Config]] = {
    "GPT2LMHeadModel": Architecture(read, GPT2, base="transformer.", unused=(".attn.bias", ".attn.masked_bias"))
}
