"""Falcon (Almazrouei et al., 2023): attention and MLP side by side, one KV head or a few, rotary positions.

Falcon-40B and later models ("new decoder architecture") store groups of query heads with their key and value. The
Falcon-RW models (Penedo et al., 2023) have ALiBi, a KV head for each head, and the MLP after attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, LayerNorm, Stack, alibi_slopes, rows_by_group
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count, require, spelling
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class FalconConfig(NetworkConfig):
    num_layers: int
    num_heads: int
    num_kv_heads: int
    rope: RopeConfig | None  # None: ALiBi
    norm_eps: float
    activation: Activation
    bias: bool  # whether projections have biases
    is_parallel: bool  # whether attention and MLP take the same input
    norms: tuple[str, ...]  # names of the norms before attention and MLP; a single one serves both


class Falcon(Stack):
    """See `Network`."""

    def __init__(self, config: FalconConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix("word_embeddings", vocab, hidden))
        scale = (hidden // config.num_heads) ** -0.5
        # Falcon scales the sum of product and bias. transformers computes the biases in bfloat16, Quire in float32.
        slopes = None if config.rope else build.constant([scale * slope for slope in alibi_slopes(config.num_heads)])
        form = AttentionForm(scale, slopes=slopes)
        blocks = [Block(config, form, inside.inside(f"h.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "ln_f", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: FalconConfig, form: AttentionForm, build: Build) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.bias
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, hidden // config.num_heads
        self._is_parallel = config.is_parallel
        norms = [LayerNorm(build, name, hidden, config.norm_eps) for name in config.norms]
        self._norm_1, self._norm_2 = norms[0], norms[-1]
        rows = rows_by_group(kv_heads, (heads // kv_heads, 1, 1), dim)
        self._attention = Attention(
            build.inside("self_attention"),
            Heads(heads, kv_heads, dim, dim),
            (Matrix("query_key_value", (heads + 2 * kv_heads) * dim, hidden, bias, rows=rows),),
            Matrix("dense", hidden, hidden, bias),
            form,
            None if config.rope is None else build.rotation(config.rope),
        )
        self._mlp = MLP(
            build.inside("mlp"),
            Matrix("dense_h_to_4h", inner, hidden, bias),
            Matrix("dense_4h_to_h", hidden, inner, bias),
            config.activation,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self._norm_1(x)
        attended = self._attention(normed, step)
        if self._is_parallel:
            return self._mlp(normed if self._norm_2 is self._norm_1 else self._norm_2(x)) + attended + x
        x = x + attended
        return x + self._mlp(self._norm_2(x))


def read(architecture: str, config: Fields) -> FalconConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    require(config, "apply_residual_connection_post_layernorm", value=False)
    # The first checkpoints have RWForCausalLM. Of these, only Falcon-40B has groups, and only its model type says so.
    is_first = architecture == "RWForCausalLM"
    is_grouped = config.flag("new_decoder_architecture", config.text("model_type", "falcon") == "RefinedWeb")
    is_parallel = config.flag("parallel_attn", is_grouped or not is_first)
    hidden = config.count(spelling(config, "n_embed", "hidden_size"), MAX_SIZE)
    num_heads = read_head_count(config, spelling(config, "n_head", "num_attention_heads"), hidden)
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 2048)
    rope = None if config.flag("alibi") else read_rope(config, hidden // num_heads)
    return FalconConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 65_024),
        hidden_size=hidden,
        intermediate_size=config.count("ffn_hidden_size", MAX_SIZE, 4 * hidden),
        max_model_len=positions if rope is None else rope.max_model_len(positions),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_layers=config.count(spelling(config, "n_layer", "num_hidden_layers"), MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=_read_kv_heads(config, num_heads, is_grouped, config.flag("multi_query", not is_first)),
        rope=rope,
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        activation=read_activation(config, "activation", "gelu"),
        bias=config.flag("bias"),
        is_parallel=is_parallel,
        norms=_read_norms(config, is_grouped, is_parallel),
    )


def _read_kv_heads(config: Fields, num_heads: int, is_grouped: bool, is_multi_query: bool) -> int:
    if is_multi_query and not is_grouped:
        return 1
    key = spelling(config, "n_head_kv", "num_kv_heads")
    num_kv_heads = config.count(key, MAX_HEADS, num_heads)
    if not is_grouped and num_kv_heads != num_heads:
        raise config.wrong(key, f"the number of heads, {num_heads}, without new_decoder_architecture")
    if num_heads % num_kv_heads:
        raise config.wrong(key, f"a divisor of the number of heads, {num_heads}")
    return num_kv_heads


def _read_norms(config: Fields, is_grouped: bool, is_parallel: bool) -> tuple[str, ...]:
    """See `FalconConfig.norms`."""
    key = "num_ln_in_parallel_attn"
    num_norms = config.count(key, 2, 2 if is_grouped else 1)
    if is_grouped and not is_parallel:
        raise ModelError(f"{config.where} sets new_decoder_architecture without parallel_attn, which is not supported")
    if not is_parallel:
        return "input_layernorm", "post_attention_layernorm"
    if num_norms == 1:
        return ("input_layernorm",)
    if not is_grouped:
        raise config.wrong(key, "1 without new_decoder_architecture")
    return "ln_attn", "ln_mlp"


ARCHITECTURES: Mapping[str, Architecture[FalconConfig]] = dict.fromkeys(
    ("FalconForCausalLM", "RWForCausalLM"), Architecture(read, Falcon, base="transformer.")
)
