"""The encoder of the BERT family (Devlin et al., 2018): every token attends to every other; post-layer norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.architectures import EncoderConfig
from services.worker.models.weights.source import WeightSource
from services.worker.ops import Linear, Ops, WholeSequences


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Tensor  # [hidden]
    bias: Tensor  # [hidden]


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    qkv: Linear  # hidden -> 3 * hidden
    output: Linear  # hidden -> hidden
    attention_norm: Norm
    up: Linear  # hidden -> intermediate
    down: Linear  # intermediate -> hidden
    norm: Norm


class Encoder:
    """Holds the weights in the layout of `ops`. Has no KV cache, and keeps no state between calls."""

    def __init__(self, config: EncoderConfig, ops: Ops, source: WeightSource) -> None:
        """Takes all weights from `source`."""
        self.config = config
        self._ops, self._source = ops, source
        self._words = ops.linear(source.weight("embeddings.word_embeddings"))
        # [max_model_len, hidden]: each position's embedding plus the embedding of token type 0, which all tokens have.
        # (In BERT, the tokens of a pair's second text have type 1; Quire does not encode pairs.)
        first, last = config.position_offset, config.position_offset + config.max_model_len
        positions = self._table("embeddings.position_embeddings")[first:last]
        self._positions = positions + self._table("embeddings.token_type_embeddings")[0]
        self._norm = self._read_norm("embeddings.LayerNorm")
        self._layers = [self._read_layer(f"encoder.layer.{index}") for index in range(config.num_layers)]

    def hidden_states(self, token_ids: Tensor, batch: WholeSequences) -> Tensor:
        """Returns the final hidden states [num_tokens, hidden] of `token_ids`, int64 [num_tokens]."""
        ops, config = self._ops, self.config
        eps = config.layer_norm_eps
        x = ops.layer_norm(
            ops.embedding(token_ids, self._words), self._norm.weight, self._norm.bias, eps,
            self._positions[batch.positions.long()],
        )  # fmt: skip
        for layer in self._layers:
            attended = layer.output(self._attention(layer, x, batch))
            x = ops.layer_norm(attended, layer.attention_norm.weight, layer.attention_norm.bias, eps, x)
            expanded = ops.gelu(layer.up(x), tanh=config.tanh_gelu)
            x = ops.layer_norm(layer.down(expanded), layer.norm.weight, layer.norm.bias, eps, x)
        return x

    def _attention(self, layer: EncoderLayer, x: Tensor, batch: WholeSequences) -> Tensor:
        heads, head_dim = self.config.num_heads, self.config.head_dim
        q, k, v = layer.qkv(x).view(-1, 3, heads, head_dim).unbind(1)
        return self._ops.full_attention(q, k, v, batch, head_dim**-0.5)

    def _read_layer(self, prefix: str) -> EncoderLayer:
        attention = f"{prefix}.attention"
        return EncoderLayer(
            qkv=self._linear(*(f"{attention}.self.{name}" for name in ("query", "key", "value"))),
            output=self._linear(f"{attention}.output.dense"),
            attention_norm=self._read_norm(f"{attention}.output.LayerNorm"),
            up=self._linear(f"{prefix}.intermediate.dense"),
            down=self._linear(f"{prefix}.output.dense"),
            norm=self._read_norm(f"{prefix}.output.LayerNorm"),
        )

    def _linear(self, *names: str) -> Linear:
        weights = [self._matrix(name) for name in names]
        biases = [self._source.vector(f"{name}.bias") for name in names]
        return self._ops.linear(torch.cat(weights), torch.cat(biases))

    def _matrix(self, name: str) -> Tensor:
        weight = self._source.weight(name)
        assert isinstance(weight, Tensor), "encoders are not quantized"
        return weight

    def _table(self, name: str) -> Tensor:
        return self._matrix(name).to(self._ops.device, self._ops.dtype)

    def _read_norm(self, name: str) -> Norm:
        weight, bias = self._source.vector(f"{name}.weight"), self._source.vector(f"{name}.bias")
        return Norm(*(vector.to(self._ops.device, self._ops.dtype, copy=True) for vector in (weight, bias)))
