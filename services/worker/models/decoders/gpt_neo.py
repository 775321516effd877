"""GPT-Neo (Black et al., 2021): GPT-2 with scores that are not scaled, and a sliding window in some of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import MLP, Attention, Block, LayerNorm, PositionTable, PreNormBlock, Stack
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_head_count
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GPTNeoConfig(NetworkConfig):
    num_heads: int
    norm_eps: float
    activation: Activation
    windows: tuple[int | None, ...]  # of each layer: tokens that a query sees, itself included


class GPTNeo(Stack):
    """See `Network`."""

    def __init__(self, config: GPTNeoConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("transformer")
        tokens = inside.linear(Matrix("wte", vocab, hidden))
        self._positions = PositionTable(inside, "wpe", config.max_model_len, hidden)
        blocks = [_block(config, window, inside.inside(f"h.{i}")) for i, window in enumerate(config.windows)]
        norm = LayerNorm(inside, "ln_f", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)

    def embed(self, step: Step) -> Tensor:
        """See `Stack`."""
        return super().embed(step) + self._positions(step.batch.positions)


def _block(config: GPTNeoConfig, window: int | None, build: Build) -> Block:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
    norm_1 = LayerNorm(build, "ln_1", hidden, config.norm_eps)
    attention = Attention(
        build.inside("attn.attention"),
        Heads(heads, heads, hidden // heads, hidden // heads),
        tuple(Matrix(f"{name}_proj", hidden, hidden) for name in ("q", "k", "v")),
        Matrix("out_proj", hidden, hidden, has_bias=True),
        AttentionForm(1.0, sliding_window=window),
    )
    norm_2 = LayerNorm(build, "ln_2", hidden, config.norm_eps)
    mlp = MLP(
        build.inside("mlp"),
        Matrix("c_fc", inner, hidden, has_bias=True),
        Matrix("c_proj", hidden, inner, has_bias=True),
        config.activation,
    )
    return PreNormBlock(norm_1, attention, norm_2, mlp)


def read(architecture: str, config: Fields) -> GPTNeoConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE, 2048)
    return GPTNeoConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 50_257),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 4 * hidden),
        max_model_len=config.count("max_position_embeddings", MAX_POSITIONS, 2048),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_heads=read_head_count(config, "num_heads", hidden, 16),
        norm_eps=config.number("layer_norm_epsilon", 1e-5, above=0, high=1),
        activation=read_activation(config, "activation_function", "gelu_new"),
        windows=_read_windows(config, config.count("num_layers", MAX_LAYERS, 24)),
    )


def _read_windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """`attention_types` is a list of groups. Each has a list of types, and how often it is repeated."""
    wrong = config.wrong(
        "attention_types", f"groups such as [[global, local], 6] that give {num_layers:,} layers a type"
    )
    windows = {"global": None, "local": config.count("window_size", MAX_POSITIONS, 256)}
    found: list[int | None] = []
    groups = config.values.get("attention_types")
    if groups is None:
        groups = [[["global", "local"], 12]]
    for group in groups if isinstance(groups, list) else [groups]:
        match group:
            case [list(kinds), int(times)] if len(found) + len(kinds) * times <= num_layers:
                if any(kind not in ("global", "local") for kind in kinds):
                    raise wrong
                found += [windows[kind] for kind in kinds] * times
            case _:
                raise wrong
    if len(found) != num_layers:
        raise wrong
    return tuple(found)


ARCHITECTURES: Mapping[str, Architecture[GPTNeoConfig]] = {
    "GPTNeoForCausalLM": Architecture(
        read, GPTNeo, base="transformer.", unused=(".attention.bias", ".attention.masked_bias")
    )
}
