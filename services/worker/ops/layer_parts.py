"""Parts of a forward pass through layers of the common kind that several implementations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops.interface import AttentionBatch, KVPages, Layer, Ops


def attend(ops: Ops, layer: Layer, qkv: Tensor, batch: AttentionBatch, pages: KVPages) -> Tensor:
    """Writes keys and values to the pages, and returns the attention's output [num_tokens, num_heads * head_dim]. qkv:
    the output of `layer.qkv`."""
    heads, kv_heads = layer.num_heads, layer.num_kv_heads
    qkv = qkv.view(-1, heads + 2 * kv_heads, layer.head_dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if layer.q_norm is not None and layer.k_norm is not None:
        q = ops.rms_norm(q, layer.q_norm, layer.rms_norm_eps)
        k = ops.rms_norm(k, layer.k_norm, layer.rms_norm_eps)
    if layer.rotation is None:
        ops.write_kv(k, v, batch, pages)
    else:
        ops.rope_and_write_kv(q, k, v, layer.rotation, batch, pages)
    return ops.paged_attention(q, batch, pages, layer.form)


def norms_after(layers: Sequence[Layer], norm: Tensor) -> list[Tensor]:
    """Returns the weight of the norm after each layer: the next layer's first norm, and `norm` after the last."""
    return [layer.input_norm for layer in layers[1:]] + [norm]
