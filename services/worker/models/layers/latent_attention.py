"""Multi-head latent attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix
from services.worker.models.layers.attention import Norm
from services.worker.models.step import Step
from services.worker.ops import AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Rotation


class LatentAttention:
    """Attention whose pages hold one latent vector per token in place of keys and values (DeepSeek-AI, 2024:
    DeepSeek-V2, section 2.1):

        c = norm(W_DKV x)                 the latent vector
        k_i = [W_UK_i c; rope(W_KR x)]    keys of head i; the rotated part is the same for all heads
        v_i = W_UV_i c                    values of head i
        o_i = Σ softmax(scale · q_i k_i) v_i

    W_UK is absorbed into the queries, and W_UV is applied after the sum: q · W_UK c is W_UKᵀ q · c, and Σ p W_UV c is
    W_UV Σ p c. So all heads share the one key [c; rope(W_KR x)], whose first part is also the one value.
    """

    def __init__(
        self,
        build: Build,
        num_heads: int,
        key_dim: int,
        latent_dim: int,
        queries: Callable[[Tensor], Tensor],
        latent: Matrix,
        latent_norm: Norm,
        keys_and_values: Matrix,
        output: Matrix,
        rotation: Rotation,
        rotary_dim: int,
        scale: float,
    ) -> None:
        """`key_dim`: elements of a key that are not rotated; `queries`: from hidden states to the queries of all heads,
        each [key_dim + rotary_dim]; `latent`: to [latent_dim + rotary_dim], W_DKV and W_KR; `keys_and_values`: W_UK and
        W_UV, head by head."""
        self._ops, self._queries, self._latent_norm, self._rotation = build.ops, queries, latent_norm, rotation
        self._num_heads, self._key_dim, self._latent_dim = num_heads, key_dim, latent_dim
        self._latent, self._output = build.linear(latent), build.linear(output)
        self._to_latent, self._to_value = build.absorbed(keys_and_values, num_heads, key_dim)
        self._form = AttentionForm(scale)
        self._pages = build.attention(Heads(num_heads, 1, latent_dim + rotary_dim, latent_dim, is_latent=True))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]. Writes the latent vectors of all tokens to the pages."""
        ops, pages, key_dim, latent_dim = self._ops, step.pages[self._pages], self._key_dim, self._latent_dim
        q = self._queries(x).view(len(x), self._num_heads, -1)  # [num_tokens, num_heads, key_dim + rotary_dim]
        ops.rope(q[..., key_dim:], self._rotation, step.batch)
        absorbed = q.new_empty((len(x), self._num_heads, pages.keys.shape[3]))
        absorbed[..., :latent_dim] = self._to_latent(q[..., :key_dim])
        absorbed[..., latent_dim:] = q[..., key_dim:]

        k = self._latent(x)[:, None]  # [num_tokens, 1, latent_dim + rotary_dim]
        k[..., :latent_dim] = self._latent_norm(k[..., :latent_dim])
        ops.rope(k[..., latent_dim:], self._rotation, step.batch)
        ops.write_kv(k, None, step.batch, pages)

        summed = ops.paged_attention(absorbed, step.batch, pages, self._form)  # [num_tokens, num_heads * latent_dim]
        return self._output(self._to_value(summed.view(len(x), self._num_heads, latent_dim)).flatten(1))


class LowRankProjection:
    """up(norm(down(x))): a projection through a vector of a lower dimension, as DeepSeek-V2's queries."""

    def __init__(self, build: Build, down: Matrix, norm: Callable[[Tensor], Tensor], up: Matrix) -> None:
        self._down, self._norm, self._up = build.linear(down), norm, build.linear(up)

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, outputs of `up`]"""
        return self._up(self._norm(self._down(x)))
