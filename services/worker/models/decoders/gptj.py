"""GPT-J (Wang and Komatsuzaki, 2021) and CodeGen (Nijkamp et al., 2022): rotary positions on pairs of neighbouring
elements; attention and MLP side by side behind one norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.errors import ModelError
from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, LayerNorm, Stack, TiedHead, rows_by_head
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count
from services.worker.models.rope import RopeConfig
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor

_THETA = 10_000.0
# CodeGen was trained on four cores, each with a part of the heads. Its matrix holds, core by core, the queries, values
# and keys of the core's heads.
_NUM_CORES = 4


@dataclass(frozen=True, slots=True)
class GPTJConfig(NetworkConfig):
    num_layers: int
    num_heads: int
    rope: RopeConfig
    norm_eps: float
    activation: Activation
    is_codegen: bool  # queries, keys and values in one matrix


class GPTJ(Stack):
    """See `Network`."""

    def __init__(self, config: GPTJConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix("wte", vocab, hidden))
        blocks = [Block(config, inside.inside(f"h.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(inside, "ln_f", hidden, config.norm_eps)
        if config.tie_word_embeddings:
            super().__init__(build.ops, tokens, blocks, norm, TiedHead(tokens, build.vector("lm_head.bias", vocab)))
        else:
            head = build.linear(Matrix("lm_head", vocab, hidden, has_bias=True))
            super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: GPTJConfig, build: Build) -> None:
        hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
        dim = hidden // heads
        self._norm = LayerNorm(build, "ln_1", hidden, config.norm_eps)
        self._attention = Attention(
            build.inside("attn"),
            Heads(heads, heads, dim, dim),
            _codegen_qkv(hidden)
            if config.is_codegen
            else tuple(Matrix(f"{name}_proj", hidden, hidden) for name in ("q", "k", "v")),
            Matrix("out_proj", hidden, hidden),
            AttentionForm(dim**-0.5),
            build.rotation(config.rope, interleaved=True),
        )
        self._mlp = MLP(
            build.inside("mlp"),
            Matrix("fc_in", inner, hidden, has_bias=True),
            Matrix("fc_out", hidden, inner, has_bias=True),
            config.activation,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self._norm(x)
        return self._attention(normed, step) + self._mlp(normed) + x


def _codegen_qkv(hidden: int) -> tuple[Matrix]:
    def rows() -> list[int]:
        by_part = list(rows_by_head(_NUM_CORES, 3, hidden // _NUM_CORES)())
        queries, values, keys = by_part[:hidden], by_part[hidden : 2 * hidden], by_part[2 * hidden :]
        return queries + keys + values

    return (Matrix("qkv_proj", 3 * hidden, hidden, rows=rows),)


def read(architecture: str, config: Fields) -> GPTJConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_codegen = architecture == "CodeGenForCausalLM"
    hidden = config.count("n_embd", MAX_SIZE, 4096)
    num_heads = read_head_count(config, "n_head", hidden, 16)
    if is_codegen:
        _refuse_other_layouts(config, num_heads)
    is_null = "rotary_dim" in config.values and config.values["rotary_dim"] is None
    rotary_dim = config.count("rotary_dim", hidden // num_heads, None if is_null else 64)
    if rotary_dim % 2:
        raise config.wrong("rotary_dim", "an even number")
    return GPTJConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 50_400),
        hidden_size=hidden,
        intermediate_size=config.count("n_inner", MAX_SIZE, 4 * hidden),
        max_model_len=config.count("n_positions", MAX_POSITIONS, 2048),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        num_layers=config.count("n_layer", MAX_LAYERS, 28),
        num_heads=num_heads,
        rope=RopeConfig(rotary_dim, _THETA),
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        activation=read_activation(config, "activation_function", "gelu_new"),
        is_codegen=is_codegen,
    )


def _refuse_other_layouts(config: Fields, num_heads: int) -> None:
    if num_heads % _NUM_CORES:
        raise config.wrong("n_head", f"a multiple of {_NUM_CORES} for CodeGen")
    # CodeGen2 has the same architecture's name, but code of its own, with the heads of eight cores.
    if config.values.get("auto_map"):
        raise ModelError(f"{config.where} names code of its own (auto_map), as CodeGen2 does, which is not supported")


ARCHITECTURES: Mapping[str, Architecture[GPTJConfig]] = dict.fromkeys(
    ("GPTJForCausalLM", "CodeGenForCausalLM"),
    Architecture(read, GPTJ, base="transformer.", unused=(".attn.bias", ".attn.masked_bias", ".attn.causal_mask")),
)
