"""The encoder of the BERT family (Devlin et al., 2018): every token attends to every other; post-layer norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.models.encoder_config import EncoderConfig
from services.worker.ops import Activation

if TYPE_CHECKING:
    from torch import Tensor

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

    def __init__(
        self,
        config: EncoderConfig,
        ops: Ops,
        words: Linear,
        positions: Tensor,
        norm: Norm,
        layers: Sequence[EncoderLayer],
    ) -> None:
        """`positions`: [max_model_len, hidden], each position's embedding plus that of token type 0, which all tokens
        have. (In BERT, the tokens of a pair's second text have type 1; Quire does not encode pairs.)"""
        self.config = config
        self._ops, self._words, self._positions, self._norm, self._layers = ops, words, positions, norm, layers

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
            expanded = ops.activation(layer.up(x), Activation.GELU_TANH if config.tanh_gelu else Activation.GELU)
            x = ops.layer_norm(layer.down(expanded), layer.norm.weight, layer.norm.bias, eps, x)
        return x

    def _attention(self, layer: EncoderLayer, x: Tensor, batch: WholeSequences) -> Tensor:
        heads, head_dim = self.config.num_heads, self.config.head_dim
        q, k, v = layer.qkv(x).view(-1, 3, heads, head_dim).unbind(1)
        return self._ops.full_attention(q, k, v, batch, head_dim**-0.5)
