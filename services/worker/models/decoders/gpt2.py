"""GPT-2 (Radford et al., 2019): learned positions, layer norms before attention and MLP.

GPT (Radford et al., 2018) has the norms after them. StarCoder (Li et al., 2023) has one head of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    MLP,
    Attention,
    Block,
    LayerNorm,
    NoNorm,
    PositionTable,
    PostNormBlock,
    PreNormBlock,
    Stack,
    rows_by_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count, require
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture differs from GPT-2."""

    tokens: str = "wte"  # names of the embeddings
    positions: str = "wpe"
    is_transposed: bool = True  # matrices are stored as [inputs, outputs]
    has_norms_first: bool = True  # before attention and MLP, and after the last block
    # Defaults of config.json.
    vocab_size: int = 50_257
    num_positions: int = 1024
    activation: str = "gelu_new"


@dataclass(frozen=True, slots=True)
class GPT2Config(NetworkConfig):
    family: Family
    num_layers: int
    num_heads: int
    num_kv_heads: int
    has_qkv_by_head: bool  # the queries, keys and values of one head are stored side by side
    norm_eps: float
    activation: Activation
    scales_scores: bool  # by 1 / sqrt(head_dim)
    scales_by_layer: bool  # by 1 / (index of the layer + 1), too


class GPT2(Stack):
    """See `Network`."""

    def __init__(self, config: GPT2Config, build: Build) -> None:
        vocab, hidden, family = config.vocab_size, config.hidden_size, config.family
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix(family.tokens, vocab, hidden))
        self._positions = PositionTable(inside, family.positions, config.max_model_len, hidden)
        blocks = [_block(config, i, inside.inside(f"h.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "ln_f", hidden, config.norm_eps) if family.has_norms_first else NoNorm()
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)

    def embed(self, step: Step) -> Tensor:
        """See `Stack`."""
        return super().embed(step) + self._positions(step.batch.positions)


def _block(config: GPT2Config, index: int, build: Build) -> Block:
    hidden, inner, eps = config.hidden_size, config.intermediate_size, config.norm_eps
    heads, kv_heads, transposed = config.num_heads, config.num_kv_heads, config.family.is_transposed
    dim = hidden // heads
    rows = rows_by_head(heads, 3, dim) if config.has_qkv_by_head else None
    scale = (dim**-0.5 if config.scales_scores else 1.0) / (index + 1 if config.scales_by_layer else 1)
    norm_1 = LayerNorm(build, "ln_1", hidden, eps)
    attention = Attention(
        build.inside("attn"),
        Heads(heads, kv_heads, dim, dim),
        (Matrix("c_attn", (heads + 2 * kv_heads) * dim, hidden, True, transposed, rows),),
        Matrix("c_proj", hidden, hidden, True, transposed),
        AttentionForm(scale),
    )
    norm_2 = LayerNorm(build, "ln_2", hidden, eps)
    mlp = MLP(
        build.inside("mlp"),
        Matrix("c_fc", inner, hidden, True, transposed),
        Matrix("c_proj", hidden, inner, True, transposed),
        config.activation,
    )
    if config.family.has_norms_first:
        return PreNormBlock(norm_1, attention, norm_2, mlp)
    return PostNormBlock(attention, norm_1, mlp, norm_2)


def read(architecture: str, config: Fields) -> GPT2Config:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    family = _FAMILIES[architecture]
    require(config, "add_cross_attention", value=False)
    is_gpt1, is_bigcode = family is _GPT1, family is _BIGCODE
    hidden = config.count("n_embd", MAX_SIZE, 768)
    num_heads = read_head_count(config, "n_head", hidden, 12)
    has_one_kv_head = is_bigcode and config.flag("multi_query", True)
    return GPT2Config(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, family.vocab_size),
        hidden_size=hidden,
        intermediate_size=4 * hidden if is_gpt1 else config.count("n_inner", MAX_SIZE, 4 * hidden),
        max_model_len=config.count("n_positions", MAX_POSITIONS, family.num_positions),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        family=family,
        num_layers=config.count("n_layer", MAX_LAYERS, 12),
        num_heads=num_heads,
        num_kv_heads=1 if has_one_kv_head else num_heads,
        has_qkv_by_head=is_bigcode and not has_one_kv_head,
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        activation=_read_activation(family, config),
        scales_scores=is_gpt1 or config.flag("scale_attn_weights", True),
        scales_by_layer=family is _GPT2 and config.flag("scale_attn_by_inverse_layer_idx"),
    )


def _read_activation(family: Family, config: Fields) -> Activation:
    # GPT calls the tanh form `gelu`.
    if family is _GPT1 and config.text("afn", "gelu") == "gelu":
        return Activation.GELU_TANH
    return read_activation(config, "afn" if family is _GPT1 else "activation_function", family.activation)


_GPT1 = Family("tokens_embed", "positions_embed", has_norms_first=False, vocab_size=40_478, num_positions=512)
_GPT2 = Family()
_BIGCODE = Family(is_transposed=False, activation="gelu_pytorch_tanh")
_FAMILIES = {"OpenAIGPTLMHeadModel": _GPT1, "GPT2LMHeadModel": _GPT2, "GPTBigCodeForCausalLM": _BIGCODE}
# Masks, and the positions that older checkpoints hold.
_UNUSED = (".attn.bias", ".attn.masked_bias", "transformer.bias", "transformer.position_ids")
ARCHITECTURES: Mapping[str, Architecture[GPT2Config]] = dict.fromkeys(
    _FAMILIES, Architecture(read, GPT2, base="transformer.", unused=_UNUSED)
)
