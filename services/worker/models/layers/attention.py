"""Attention over the paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix
from services.worker.models.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import AttentionForm, Heads, Rotation

# A norm of queries or keys, [num_tokens, heads, key_dim] to the same shape.
Norm = Callable[["Tensor"], "Tensor"]


def rows_by_group(num_groups: int, parts: tuple[int, ...], dim: int) -> Callable[[], Sequence[int]]:
    """Returns `Matrix.rows` of a matrix that is stored as [num_groups, sum(parts), dim] outputs. In the new order, the
    first parts[0] of all groups come first, then the next parts[1] of all groups, and so on. For example, each group of
    query heads can be stored with its key and its value."""

    def rows() -> list[int]:
        starts = [sum(parts[:index]) for index in range(len(parts))]
        return [
            (group * sum(parts) + part) * dim + at
            for start, size in zip(starts, parts, strict=True)
            for group in range(num_groups)
            for part in range(start, start + size)
            for at in range(dim)
        ]

    return rows


def rows_by_head(num_heads: int, num_parts: int, dim: int) -> Callable[[], Sequence[int]]:
    """Returns `Matrix.rows` that turn the stored outputs [num_heads, num_parts, dim] into [num_parts, num_heads, dim],
    such as queries, keys and values that are stored head by head."""
    return rows_by_group(num_heads, (1,) * num_parts, dim)


class Attention:
    """Multi-head attention (Vaswani et al., 2017), in which several query heads can share a KV head (Ainslie et al.,
    2023)."""

    def __init__(
        self,
        build: Build,
        heads: Heads,
        qkv: tuple[Matrix, ...],
        output: Matrix,
        form: AttentionForm,
        rotation: Rotation | None = None,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        clip: float | None = None,
    ) -> None:
        """`qkv`: the projections to queries, keys and values, with the outputs of all heads in this order; or one
        matrix that holds them. `rotation`: positions by rotation, applied after the norms. `clip`: bound of the
        elements of queries, keys and values before the norms."""
        self._ops, self._heads, self._form, self._rotation = build.ops, heads, form, rotation
        self._q_norm, self._k_norm, self._clip = q_norm, k_norm, clip
        self._qkv, self._output = build.linear(*qkv), build.linear(output)
        self._pages = build.attention(heads)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]. Writes keys and values of all tokens to the pages."""
        ops, heads, pages = self._ops, self._heads, step.pages[self._pages]
        queries, keys = heads.num_heads * heads.key_dim, heads.num_kv_heads * heads.key_dim
        qkv = self._qkv(x)
        qkv = qkv if self._clip is None else qkv.clamp(-self._clip, self._clip)
        q = qkv[:, :queries].view(-1, heads.num_heads, heads.key_dim)
        k = qkv[:, queries : queries + keys].view(-1, heads.num_kv_heads, heads.key_dim)
        v = qkv[:, queries + keys :].view(-1, heads.num_kv_heads, heads.value_dim)
        q = q if self._q_norm is None else self._q_norm(q)
        k = k if self._k_norm is None else self._k_norm(k)
        if self._rotation is None:
            ops.write_kv(k, v, step.batch, pages)
        else:
            ops.rope_and_write_kv(q, k, v, self._rotation, step.batch, pages)
        return self._output(ops.paged_attention(q, step.batch, pages, self._form))
