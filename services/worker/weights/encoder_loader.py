"""Builds an encoder with weights from a source."""

from __future__ import annotations

import torch
from torch import Tensor

from services.worker.models import Encoder, EncoderConfig, EncoderLayer, Norm
from services.worker.ops import Linear, Ops
from services.worker.weights.source import WeightSource


def load_encoder(config: EncoderConfig, ops: Ops, source: WeightSource) -> Encoder:
    """Takes all weights from `source`."""
    loader = _Loader(ops, source)
    words = ops.linear(source.weight("embeddings.word_embeddings"))
    first, last = config.position_offset, config.position_offset + config.max_model_len
    positions = loader.table("embeddings.position_embeddings")[first:last]
    positions = positions + loader.table("embeddings.token_type_embeddings")[0]
    norm = loader.norm("embeddings.LayerNorm")
    layers = [loader.layer(f"encoder.layer.{index}") for index in range(config.num_layers)]
    return Encoder(config, ops, words, positions, norm, layers)


class _Loader:
    def __init__(self, ops: Ops, source: WeightSource) -> None:
        self._ops, self._source = ops, source

    def layer(self, prefix: str) -> EncoderLayer:
        attention = f"{prefix}.attention"
        return EncoderLayer(
            qkv=self._linear(*(f"{attention}.self.{name}" for name in ("query", "key", "value"))),
            output=self._linear(f"{attention}.output.dense"),
            attention_norm=self.norm(f"{attention}.output.LayerNorm"),
            up=self._linear(f"{prefix}.intermediate.dense"),
            down=self._linear(f"{prefix}.output.dense"),
            norm=self.norm(f"{prefix}.output.LayerNorm"),
        )

    def table(self, name: str) -> Tensor:
        return self._matrix(name).to(self._ops.device, self._ops.dtype)

    def norm(self, name: str) -> Norm:
        weight, bias = self._source.vector(f"{name}.weight"), self._source.vector(f"{name}.bias")
        return Norm(*(vector.to(self._ops.device, self._ops.dtype, copy=True) for vector in (weight, bias)))

    def _linear(self, *names: str) -> Linear:
        weights = [self._matrix(name) for name in names]
        biases = [self._source.vector(f"{name}.bias") for name in names]
        return self._ops.linear(torch.cat(weights), torch.cat(biases))

    def _matrix(self, name: str) -> Tensor:
        weight = self._source.weight(name)
        assert isinstance(weight, Tensor), "encoders are not quantized"
        return weight
