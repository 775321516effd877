"""MPT (MosaicML, 2023): ALiBi, no biases, layer norms before attention and MLP.

The architecture is that of https://www.mosaicml.com/blog/mpt-7b. transformers' class ignores several keys of MPT's own
configuration. Quire honours or refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, LayerNorm, Stack, alibi_slopes
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_FACTOR, read_choice, read_head_count, refuse, require
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor

_MAX_RATIO = 1 << 10  # of MLP and hidden size
_MAX_EXPONENT = 1 << 10


@dataclass(frozen=True, slots=True)
class MPTConfig(NetworkConfig):
    num_layers: int
    num_heads: int
    norm_eps: float
    scale: float  # of scores
    max_exponent: float  # of ALiBi's slopes
    clip: float | None  # bound of the elements of queries, keys and values


class MPT(Stack):
    """See `Network`."""

    def __init__(self, config: MPTConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix("wte", vocab, hidden))
        slopes = build.constant(alibi_slopes(config.num_heads, config.max_exponent))
        form = AttentionForm(config.scale, slopes=slopes)
        blocks = [Block(config, form, inside.inside(f"blocks.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "norm_f", hidden, config.norm_eps, has_bias=False)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: MPTConfig, form: AttentionForm, build: Build) -> None:
        hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
        dim = hidden // heads
        self._norm_1 = LayerNorm(build, "norm_1", hidden, config.norm_eps, has_bias=False)
        self._attention = Attention(
            build.inside("attn"),
            Heads(heads, heads, dim, dim),
            (Matrix("Wqkv", 3 * hidden, hidden),),
            Matrix("out_proj", hidden, hidden),
            form,
            clip=config.clip,
        )
        self._norm_2 = LayerNorm(build, "norm_2", hidden, config.norm_eps, has_bias=False)
        self._mlp = MLP(
            build.inside("ffn"), Matrix("up_proj", inner, hidden), Matrix("down_proj", hidden, inner), Activation.GELU
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._mlp(self._norm_2(x))


def read(architecture: str, config: Fields) -> MPTConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    attention = config.nested("attn_config") or Fields({}, config.where)
    mlp = config.nested("ffn_config") or Fields({}, config.where)
    require(config, "no_bias", value=True)
    read_choice(config, "norm_type", "low_precision_layernorm", "layernorm")
    refuse(config, "logit_scale", "final_logit_softcapping", "block_overrides")
    require(attention, "alibi", value=True)
    read_choice(attention, "attn_type", "multihead_attention")
    for flag in ("prefix_lm", "qk_ln", "qk_gn", "attn_uses_sequence_id"):
        require(attention, flag, value=False)
    refuse(attention, "attn_logit_softcapping")
    if attention.values.get("sliding_window_size", -1) != -1:
        raise attention.wrong("sliding_window_size", "-1; windows are not supported")
    read_choice(mlp, "ffn_type", "mptmlp")
    refuse(mlp, "ffn_act_fn")
    hidden = config.count("d_model", MAX_SIZE, 2048)
    num_heads = read_head_count(config, "n_heads", hidden)
    return MPTConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 50_368),
        hidden_size=hidden,
        intermediate_size=config.count("expansion_ratio", _MAX_RATIO, 4) * hidden,
        max_model_len=config.count("max_seq_len", MAX_POSITIONS, 2048),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_layers=config.count("n_layers", MAX_LAYERS),
        num_heads=num_heads,
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        scale=attention.number("softmax_scale", (hidden // num_heads) ** -0.5, above=0, high=MAX_FACTOR),
        max_exponent=attention.count("alibi_bias_max", _MAX_EXPONENT, 8),
        clip=attention.number("clip_qkv", 0, above=0, high=MAX_FACTOR) if attention.values.get("clip_qkv") else None,
    )


ARCHITECTURES: Mapping[str, Architecture[MPTConfig]] = dict.fromkeys(
    ("MPTForCausalLM", "MptForCausalLM"), Architecture(read, MPT, base="transformer.")
)
