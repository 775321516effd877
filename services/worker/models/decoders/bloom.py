"""Bloom (BigScience Workshop, 2022): ALiBi, a norm of the embeddings, layer norms before attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, LayerNorm, Stack, alibi_slopes, rows_by_head
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_head_count, require, spelling
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BloomConfig(NetworkConfig):
    num_layers: int
    num_heads: int
    norm_eps: float
    adds_to_normed: bool  # whether attention and MLP add to their normed input, not to the input itself


class Bloom(Stack):
    """See `Network`."""

    def __init__(self, config: BloomConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix("word_embeddings", vocab, hidden))
        self._embedding_norm = LayerNorm(inside, "word_embeddings_layernorm", hidden, config.norm_eps)
        slopes = build.constant(alibi_slopes(config.num_heads))
        blocks = [Block(config, slopes, inside.inside(f"h.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "ln_f", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)

    def embed(self, step: Step) -> Tensor:
        """See `Stack`."""
        return self._embedding_norm(super().embed(step))


class Block:
    def __init__(self, config: BloomConfig, slopes: Tensor, build: Build) -> None:
        hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
        dim = hidden // heads
        self._adds_to_normed = config.adds_to_normed
        self._norm_1 = LayerNorm(build, "input_layernorm", hidden, config.norm_eps)
        self._attention = Attention(
            build.inside("self_attention"),
            Heads(heads, heads, dim, dim),
            (Matrix("query_key_value", 3 * hidden, hidden, has_bias=True, rows=rows_by_head(heads, 3, dim)),),
            Matrix("dense", hidden, hidden, has_bias=True),
            AttentionForm(dim**-0.5, slopes=slopes),
        )
        self._norm_2 = LayerNorm(build, "post_attention_layernorm", hidden, config.norm_eps)
        self._mlp = MLP(
            build.inside("mlp"),
            Matrix("dense_h_to_4h", inner, hidden, has_bias=True),
            Matrix("dense_4h_to_h", hidden, inner, has_bias=True),
            Activation.GELU_TANH,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self._norm_1(x)
        x = (normed if self._adds_to_normed else x) + self._attention(normed, step)
        normed = self._norm_2(x)
        return (normed if self._adds_to_normed else x) + self._mlp(normed)


def read(architecture: str, config: Fields) -> BloomConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    require(config, "slow_but_exact", value=False)  # with several slices, transformers leaves out two biases
    hidden = config.count(spelling(config, "n_embed", "hidden_size"), MAX_SIZE)
    return BloomConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        max_model_len=config.count("seq_length", MAX_POSITIONS, 2048),  # ALiBi itself has no limit
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_layers=config.count(spelling(config, "num_hidden_layers", "n_layer"), MAX_LAYERS),
        num_heads=read_head_count(config, spelling(config, "num_attention_heads", "n_head"), hidden),
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        adds_to_normed=config.flag("apply_residual_connection_post_layernorm"),
    )


ARCHITECTURES: Mapping[str, Architecture[BloomConfig]] = {
    "BloomForCausalLM": Architecture(read, Bloom, base="transformer.")
}
