"""GPT-NeoX (Black et al., 2022) and Pythia: rotary positions on a part of each head; attention and MLP side by side.

GPT-NeoX-Japanese (ABEJA, 2022) has them one after the other, and no biases but one, of the last layer's attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, LayerNorm, Stack, rows_by_head
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count
from services.worker.models.rope import MAX_THETA, RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GPTNeoXConfig(NetworkConfig):
    scope: str  # of all names but the head's
    num_layers: int
    num_heads: int
    rope: RopeConfig
    norm_eps: float
    activation: Activation
    attention_bias: bool
    mlp_bias: bool
    has_last_bias: bool  # of the last layer's attention, with a name of its own
    is_parallel: bool  # whether attention and MLP take the same input


class GPTNeoX(Stack):
    """See `Network`."""

    def __init__(self, config: GPTNeoXConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside(config.scope)
        tokens = inside.linear(Matrix("embed_in", vocab, hidden))
        blocks = [Block(config, i, inside.inside(f"layers.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "final_layer_norm", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("embed_out", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: GPTNeoXConfig, index: int, build: Build) -> None:
        hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
        dim, bias, mlp_bias = hidden // heads, config.attention_bias, config.mlp_bias
        self._is_parallel = config.is_parallel
        self._norm_1 = LayerNorm(build, "input_layernorm", hidden, config.norm_eps)
        self._attention = Attention(
            build.inside("attention"),
            Heads(heads, heads, dim, dim),
            (Matrix("query_key_value", 3 * hidden, hidden, bias, rows=rows_by_head(heads, 3, dim)),),
            Matrix("dense", hidden, hidden, bias),
            AttentionForm(dim**-0.5),
            build.rotation(config.rope),
        )
        has_last_bias = config.has_last_bias and index == config.num_layers - 1
        self._last_bias = build.vector("attention.dense_bias", hidden) if has_last_bias else None
        self._norm_2 = LayerNorm(build, "post_attention_layernorm", hidden, config.norm_eps)
        self._mlp = MLP(
            build.inside("mlp"),
            Matrix("dense_h_to_4h", inner, hidden, mlp_bias),
            Matrix("dense_4h_to_h", hidden, inner, mlp_bias),
            config.activation,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        attended = self._attention(self._norm_1(x), step)
        attended = attended if self._last_bias is None else attended + self._last_bias
        if self._is_parallel:
            return self._mlp(self._norm_2(x)) + attended + x
        x = x + attended
        return x + self._mlp(self._norm_2(x))


def read(architecture: str, config: Fields) -> GPTNeoXConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_japanese = architecture == "GPTNeoXJapaneseForCausalLM"
    hidden = config.count("hidden_size", MAX_SIZE, 2560 if is_japanese else 6144)
    num_heads = read_head_count(config, "num_attention_heads", hidden, 32 if is_japanese else 64)
    theta = config.number("rotary_emb_base", 10_000.0, above=1, high=MAX_THETA)
    partial = config.number("rotary_pct", 1.0 if is_japanese else 0.25, above=0, high=1)
    rope = read_rope(config, hidden // num_heads, theta=theta, partial=partial)
    return GPTNeoXConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 32_000 if is_japanese else 50_432),
        hidden_size=hidden,
        intermediate_size=hidden * config.count("intermediate_multiple_size", MAX_SIZE // hidden, 4)
        if is_japanese
        else config.count("intermediate_size", MAX_SIZE, 24_576),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 2048)),
        tie_word_embeddings=config.flag("tie_word_embeddings", is_japanese),
        scope="gpt_neox_japanese" if is_japanese else "gpt_neox",
        num_layers=config.count("num_hidden_layers", MAX_LAYERS, 32 if is_japanese else 44),
        num_heads=num_heads,
        rope=rope,
        norm_eps=config.number("layer_norm_eps", 1e-5, above=0, high=1),
        activation=read_activation(config, "hidden_act", "gelu"),
        attention_bias=not is_japanese and config.flag("attention_bias", True),
        mlp_bias=not is_japanese,
        has_last_bias=is_japanese,
        is_parallel=not is_japanese and config.flag("use_parallel_residual", True),
    )


ARCHITECTURES: Mapping[str, Architecture[GPTNeoXConfig]] = dict.fromkeys(
    ("GPTNeoXForCausalLM", "GPTNeoXJapaneseForCausalLM"),
    Architecture(read, GPTNeoX, unused=(".attention.bias", ".attention.masked_bias", "embed_out.weight")),
)
