"""The weights of one decoder layer, in the operations' own layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from services.worker.architectures.config import LayerConfig

if TYPE_CHECKING:
    from services.worker.ops.interface import Linear


@dataclass(frozen=True, slots=True)
class Layer:
    config: LayerConfig
    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (num_heads + 2 * num_kv_heads) * head_dim
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    output: Linear  # num_heads * head_dim -> hidden
    post_attention_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden
