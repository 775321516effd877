"""MPNet (Song et al., 2020): BERT without token types, with a bias of scores by distance (Raffel et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.encoder_network import EncoderArchitecture, EncoderNetworkConfig
from services.worker.models.layers import (
    MLP,
    Classifier,
    Embeddings,
    EncoderBlock,
    EncoderStack,
    FullAttention,
    LayerNorm,
    PositionTable,
    PostNormBlock,
    full_form,
    tanh,
)
from services.worker.models.reading import read_activation, read_head_count
from services.worker.ops import Activation, Heads
from services.worker.pooling import read_num_labels

if TYPE_CHECKING:
    from torch import Tensor

_NUM_BUCKETS = 32
_MAX_DISTANCE = 128  # greater distances have its bucket
_OFFSET = 2  # row of the position table for a sequence's first token, after that of padding


@dataclass(frozen=True, slots=True)
class MPNetConfig(EncoderNetworkConfig):
    num_layers: int
    num_heads: int
    norm_eps: float
    activation: Activation


class MPNet(EncoderStack):
    """See `EncoderNetwork`."""

    def __init__(self, config: MPNetConfig, build: Build) -> None:
        inside, hidden = build.inside("mpnet"), config.hidden_size
        embed, layers = inside.inside("embeddings"), inside.inside("encoder")
        embeddings = Embeddings(
            embed,
            Matrix("word_embeddings", config.vocab_size, hidden),
            LayerNorm(embed, "LayerNorm", hidden, config.norm_eps),
            positions=PositionTable(embed, "position_embeddings", config.max_model_len, hidden, _OFFSET),
        )
        buckets = [bucket(distance) for distance in range(-_MAX_DISTANCE, _MAX_DISTANCE + 1)]
        bias = layers.distance_bias("relative_attention_bias.weight", _NUM_BUCKETS, config.num_heads, buckets)
        blocks = [block(config, bias, layers.inside(f"layer.{i}")) for i in range(config.num_layers)]
        super().__init__(embeddings, blocks, classifier=classifier(config, build) if config.num_labels else None)


def block(config: MPNetConfig, bias: Tensor, build: Build) -> EncoderBlock:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.hidden_size // config.num_heads
    attention = build.inside("attention")
    return PostNormBlock(
        FullAttention(
            attention.inside("attn"),
            Heads(config.num_heads, config.num_heads, dim, dim),
            tuple(Matrix(name, hidden, hidden, has_bias=True) for name in "qkv"),
            Matrix("o", hidden, hidden, has_bias=True),
            full_form(dim**-0.5, distance_bias=bias),
        ),
        LayerNorm(attention, "LayerNorm", hidden, config.norm_eps),
        MLP(
            build,
            Matrix("intermediate.dense", inner, hidden, has_bias=True),
            Matrix("output.dense", hidden, inner, has_bias=True),
            config.activation,
        ),
        LayerNorm(build, "output.LayerNorm", hidden, config.norm_eps),
    )


def classifier(config: MPNetConfig, build: Build) -> Classifier:
    hidden, head = config.hidden_size, build.inside("classifier")
    return Classifier(
        head,
        Matrix("dense", hidden, hidden, has_bias=True),
        tanh,
        Matrix("out_proj", config.num_labels, hidden, has_bias=True),
    )


def bucket(distance: int) -> int:
    """Returns the bucket of a key's position minus the query's (T5: Raffel et al., 2020, section 2.1). The first half
    of the buckets is for keys before the query. Within a half, near distances have one bucket each, and further ones
    share buckets of logarithmic size."""
    half = _NUM_BUCKETS // 2
    near, first, size = half // 2, half if distance > 0 else 0, abs(distance)
    if size < near:
        return first + size
    # The small term keeps powers of two from being rounded down.
    step = int(math.log(size / near) / math.log(_MAX_DISTANCE / near) * (half - near) + 1e-6)
    return first + min(near + step, half - 1)


def read(architecture: str, config: Fields) -> MPNetConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE, 768)
    # transformers, too, assigns distances to 32 buckets, whatever this key says.
    if config.count("relative_attention_num_buckets", MAX_SIZE, _NUM_BUCKETS) != _NUM_BUCKETS:
        raise config.wrong("relative_attention_num_buckets", str(_NUM_BUCKETS))
    return MPNetConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 30_527),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 3072),
        max_model_len=config.count("max_position_embeddings", MAX_POSITIONS, 512, low=_OFFSET + 1) - _OFFSET,
        num_labels=read_num_labels(architecture, config),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS, 12),
        num_heads=read_head_count(config, "num_attention_heads", hidden),
        norm_eps=config.number("layer_norm_eps", 1e-12, above=0, high=1),
        activation=read_activation(config, "hidden_act", "gelu"),
    )


_UNUSED = ("lm_head.", "pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")
ARCHITECTURES: Mapping[str, EncoderArchitecture[MPNetConfig]] = dict.fromkeys(
    ("MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"),
    EncoderArchitecture(read, MPNet, "mpnet.", _UNUSED),
)
