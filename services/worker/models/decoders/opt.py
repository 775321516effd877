"""OPT (Zhang et al., 2022) and other decoders that were trained with fairseq: XGLM (Lin et al., 2021) and BioGPT (Luo
et al., 2022). Their forward pass is GPT-2's.

OPT-350M has the norms after attention and MLP, and embeddings that are narrower than the hidden states. XGLM has
sinusoids for positions.
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
    Sinusoids,
    Stack,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count, require
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor

_NORM_EPS = 1e-5  # no key of config.json sets it; BioGPT's `layer_norm_eps` is not used
_OFFSET = 2  # fairseq counts positions from the padding token's id, 1, plus 1


@dataclass(frozen=True, slots=True)
class Family:
    """Names of an architecture's weights, and its keys in config.json with their defaults."""

    scope: str
    norm: str  # after the last block
    head: str
    vocab_size: int
    hidden_size: tuple[str, int]
    intermediate_size: tuple[str, int]
    num_layers: tuple[str, int]
    num_heads: tuple[str, int]
    activation: tuple[str, str]
    num_positions: int
    has_learned_positions: bool = True
    scales_embeddings: bool = True  # by sqrt(hidden_size), unless config.json says otherwise


@dataclass(frozen=True, slots=True)
class OPTConfig(NetworkConfig):
    family: Family
    embedding_size: int  # if it is not the hidden size, projections lead from and to it
    scales_embeddings: bool
    num_layers: int
    num_heads: int
    activation: Activation
    has_biases: bool
    has_norm_weights: bool
    has_norms_first: bool  # before attention and MLP
    has_last_norm: bool  # after the last block


class OPT(Stack):
    """See `Network`."""

    def __init__(self, config: OPTConfig, build: Build) -> None:
        vocab, hidden, size, family = config.vocab_size, config.hidden_size, config.embedding_size, config.family
        inside = build.inside(family.scope)
        tokens = inside.linear(Matrix("embed_tokens", vocab, size))
        scale = hidden**0.5 if config.scales_embeddings else None
        self._project_in = None if size == hidden else inside.linear(Matrix("project_in", hidden, size))
        self._positions = (
            PositionTable(inside, "embed_positions", config.max_model_len, hidden, _OFFSET)
            if family.has_learned_positions
            else Sinusoids(build, hidden, _OFFSET)
        )
        blocks = [_block(config, inside.inside(f"layers.{i}")) for i in range(config.num_layers)]
        norm = _norm(config, inside, family.norm) if config.has_last_norm else NoNorm()
        self._project_out = None if size == hidden else inside.linear(Matrix("project_out", size, hidden))
        head = tokens if config.tie_word_embeddings else build.linear(Matrix(family.head, vocab, size))
        super().__init__(build.ops, tokens, blocks, norm, head, scale)

    def embed(self, step: Step) -> Tensor:
        """See `Stack`."""
        x = super().embed(step)
        x = x if self._project_in is None else self._project_in(x)
        return x + self._positions(step.batch.positions)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        return super().logits(hidden_states if self._project_out is None else self._project_out(hidden_states))


def _block(config: OPTConfig, build: Build) -> Block:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
    bias = config.has_biases
    dim = hidden // heads
    attention = Attention(
        build.inside("self_attn"),
        Heads(heads, heads, dim, dim),
        tuple(Matrix(f"{name}_proj", hidden, hidden, bias) for name in ("q", "k", "v")),
        Matrix("out_proj", hidden, hidden, bias),
        AttentionForm(dim**-0.5),
    )
    norm_1 = _norm(config, build, "self_attn_layer_norm")
    mlp = MLP(build, Matrix("fc1", inner, hidden, bias), Matrix("fc2", hidden, inner, bias), config.activation)
    norm_2 = _norm(config, build, "final_layer_norm")
    if config.has_norms_first:
        return PreNormBlock(norm_1, attention, norm_2, mlp)
    return PostNormBlock(attention, norm_1, mlp, norm_2)


def _norm(config: OPTConfig, build: Build, name: str) -> LayerNorm:
    stored = config.has_norm_weights
    return LayerNorm(build, name, config.hidden_size, _NORM_EPS, has_weight=stored, has_bias=stored)


def read(architecture: str, config: Fields) -> OPTConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    family = _FAMILIES[architecture]
    require(config, "add_cross_attention", value=False)
    hidden = config.count(family.hidden_size[0], MAX_SIZE, family.hidden_size[1])
    if not family.has_learned_positions:
        _check_sinusoids(config, family.hidden_size[0], hidden)
    norms_first = config.flag("do_layer_norm_before", True)
    return OPTConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, family.vocab_size),
        hidden_size=hidden,
        intermediate_size=config.count(family.intermediate_size[0], MAX_SIZE, family.intermediate_size[1]),
        max_model_len=config.count("max_position_embeddings", MAX_POSITIONS, family.num_positions),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        family=family,
        embedding_size=config.count("word_embed_proj_dim", MAX_SIZE, hidden),
        scales_embeddings=family.scales_embeddings and config.flag("scale_embedding", True),
        num_layers=config.count(family.num_layers[0], MAX_LAYERS, family.num_layers[1]),
        num_heads=read_head_count(config, family.num_heads[0], hidden, family.num_heads[1]),
        activation=read_activation(config, *family.activation),
        has_biases=config.flag("enable_bias", True),
        has_norm_weights=config.flag("layer_norm_elementwise_affine", True),
        has_norms_first=norms_first,
        has_last_norm=norms_first and not config.flag("_remove_final_layer_norm"),
    )


def _check_sinusoids(config: Fields, key: str, hidden: int) -> None:
    if hidden % 2 or hidden < 4:
        raise config.wrong(key, "an even number, at least 4")
    # The position whose number plus 2 is the padding token's id would have zeros for sinusoids.
    config.optional_count("pad_token_id", _OFFSET - 1, low=0)


_FAMILIES = {
    "OPTForCausalLM": Family(
        scope="model.decoder",
        norm="final_layer_norm",
        head="lm_head",
        vocab_size=50_272,
        hidden_size=("hidden_size", 768),
        intermediate_size=("ffn_dim", 3072),
        num_layers=("num_hidden_layers", 12),
        num_heads=("num_attention_heads", 12),
        activation=("activation_function", "relu"),
        num_positions=2048,
        scales_embeddings=False,
    ),
    "XGLMForCausalLM": Family(
        scope="model",
        norm="layer_norm",
        head="lm_head",
        vocab_size=256_008,
        hidden_size=("d_model", 1024),
        intermediate_size=("ffn_dim", 4096),
        num_layers=("num_layers", 24),
        num_heads=("attention_heads", 16),
        activation=("activation_function", "gelu"),
        num_positions=2048,
        has_learned_positions=False,
    ),
    "BioGptForCausalLM": Family(
        scope="biogpt",
        norm="layer_norm",
        head="output_projection",
        vocab_size=42_384,
        hidden_size=("hidden_size", 1024),
        intermediate_size=("intermediate_size", 4096),
        num_layers=("num_hidden_layers", 24),
        num_heads=("num_attention_heads", 16),
        activation=("hidden_act", "gelu"),
        num_positions=1024,
    ),
}
# Heads beside tied embeddings, sinusoids, and the version of fairseq.
_UNUSED = ("lm_head.weight", "output_projection.weight", "embed_positions.weights", "decoder.version")
ARCHITECTURES: Mapping[str, Architecture[OPTConfig]] = {
    name: Architecture(read, OPT, base=f"{family.scope.partition('.')[0]}.", unused=_UNUSED)
    for name, family in _FAMILIES.items()
}
