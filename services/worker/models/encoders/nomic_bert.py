"""Nomic BERT (Nussbaum et al., 2024): rotary positions and SwiGLU, with norms after attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.errors import ModelError
from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.encoder_network import EncoderArchitecture, EncoderNetworkConfig
from services.worker.models.layers import (
    Embeddings,
    EncoderBlock,
    EncoderStack,
    FullAttention,
    GatedMLP,
    LayerNorm,
    PostNormBlock,
    full_form,
)
from services.worker.models.reading import read_activation, read_choice, read_equal_head_dim, read_head_count, require
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation, Heads


@dataclass(frozen=True, slots=True)
class NomicBertConfig(EncoderNetworkConfig):
    num_layers: int
    num_heads: int
    num_token_types: int
    rope: RopeConfig
    norm_eps: float
    activation: Activation


class NomicBert(EncoderStack):
    """See `EncoderNetwork`. Names of weights are those of the published checkpoints."""

    def __init__(self, config: NomicBertConfig, build: Build) -> None:
        hidden = config.hidden_size
        embeddings = Embeddings(
            build.inside("embeddings"),
            Matrix("word_embeddings", config.vocab_size, hidden),
            LayerNorm(build, "emb_ln", hidden, config.norm_eps),
            Matrix("token_type_embeddings", config.num_token_types, hidden),
        )
        super().__init__(
            embeddings, [block(config, build.inside(f"encoder.layers.{i}")) for i in range(config.num_layers)]
        )


def block(config: NomicBertConfig, build: Build) -> EncoderBlock:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.hidden_size // config.num_heads
    return PostNormBlock(
        FullAttention(
            build.inside("attn"),
            Heads(config.num_heads, config.num_heads, dim, dim),
            (Matrix("Wqkv", 3 * hidden, hidden),),
            Matrix("out_proj", hidden, hidden),
            full_form(dim**-0.5),
            build.rotation(config.rope),
        ),
        LayerNorm(build, "norm1", hidden, config.norm_eps),
        GatedMLP(
            build.inside("mlp"),
            (Matrix("fc12", inner, hidden), Matrix("fc11", inner, hidden)),
            Matrix("fc2", hidden, inner),
            config.activation,
        ),
        LayerNorm(build, "norm2", hidden, config.norm_eps),
    )


def read(architecture: str, config: Fields) -> NomicBertConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    config = _renamed(config)
    if config.optional_count("num_experts", MAX_SIZE, low=0):
        raise ModelError(f"{config.where} sets num_experts: encoders with experts are not supported")
    hidden = config.count("hidden_size", MAX_SIZE, 768)
    num_heads = read_head_count(config, "num_attention_heads", hidden)
    rope = read_rope(config, read_equal_head_dim(config, hidden, num_heads), theta=1000.0)
    return NomicBertConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 30_528),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 3072),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 2048)),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS, 12),
        num_heads=num_heads,
        num_token_types=config.count("type_vocab_size", MAX_VOCAB_SIZE, 2),
        rope=rope,
        norm_eps=config.number("layer_norm_eps", 1e-12, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
    )


def _renamed(config: Fields) -> Fields:
    """Returns the configuration with transformers' keys in place of those of GPT-2, which the published checkpoints
    have. Raises ModelError for values of other keys that would change the forward pass."""
    if "n_embd" not in config.values:
        return config
    for key, value in _FLAGS.items():
        require(config, key, value=value)
    read_choice(config, "activation_function", "swiglu")
    if config.number("rotary_emb_fraction", 1.0, above=0, high=MAX_SIZE) != 1:
        raise config.wrong("rotary_emb_fraction", "1")
    values = dict(config.values) | {new: config.values[old] for old, new in _KEYS.items() if old in config.values}
    # `n_positions` is the length with dynamic scaling, which the first positions do not need.
    values["max_position_embeddings"] = config.count("max_trained_positions", MAX_POSITIONS, 2048)
    return Fields(values, config.where)


_KEYS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_FLAGS = {
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "rotary_emb_interleaved": False,
    "causal": False,
}
ARCHITECTURES: Mapping[str, EncoderArchitecture[NomicBertConfig]] = {
    "NomicBertModel": EncoderArchitecture(read, NomicBert, unused=("pooler.dense.weight", "pooler.dense.bias"))
}
