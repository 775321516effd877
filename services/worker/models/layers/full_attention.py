"""Attention over whole sequences, for encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.fields import MAX_POSITIONS
from services.worker.models.build import Build, Matrix
from services.worker.ops import AttentionForm

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Heads, Rotation, WholeSequences


def full_form(scale: float, window: int | None = None, distance_bias: Tensor | None = None) -> AttentionForm:
    """Returns a form in which a query sees keys before and after its own: at most `window` of them on each side, or all
    if it is None. `distance_bias`: see `AttentionForm`."""
    if window is None:
        return AttentionForm(scale, lookahead=MAX_POSITIONS, distance_bias=distance_bias)
    return AttentionForm(scale, sliding_window=window + 1, lookahead=window, distance_bias=distance_bias)


class FullAttention:
    """Multi-head attention (Vaswani et al., 2017) of tokens to those before and after them."""

    def __init__(
        self,
        build: Build,
        heads: Heads,
        qkv: tuple[Matrix, ...],
        output: Matrix,
        form: AttentionForm,
        rotation: Rotation | None = None,
    ) -> None:
        """`qkv`: the projections to queries, keys and values, with the outputs of all heads in this order; or one
        matrix that holds them."""
        self._ops, self._heads, self._form, self._rotation = build.ops, heads, form, rotation
        self._qkv, self._output = build.linear(*qkv), build.linear(output)

    def __call__(self, x: Tensor, batch: WholeSequences) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        heads, kv_heads = self._heads.num_heads, self._heads.num_kv_heads
        qkv = self._qkv(x).view(-1, heads + 2 * kv_heads, self._heads.key_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        return self._output(self._ops.full_attention(q, k, v, batch, self._form, self._rotation))
