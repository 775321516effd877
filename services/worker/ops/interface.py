"""The interface of the operations that a decoder layer is made of. Each kind of device implements it.

A model (`services/worker/models/`) is written once against `Ops`. Implementations: `reference.py` (plain torch, any
device, the oracle of the tests), `cpu/` (compiled, fixed order of reduction) and `triton/` (NVIDIA GPUs).

Numerics contract: if an implementation sets `batch_invariant`, the bits of each row (token) depend only on that row's
own inputs and its own sequence's pages. They do not depend on the number of rows in the call, on the row's place among
them, or on how a prompt was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.architectures import LayerConfig, ModelConfig
from services.worker.quantization.kinds import QuantizedWeight, Weight


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """How a device divides the attention of one batch. `Ops.plan_attention` computes it on the host.

    `num_decodes` and `num_tiles` are upper bounds for the launch; `items` holds the exact numbers. So a recorded launch
    serves every batch that is no larger.
    """

    items: Tensor  # int32; each Ops has its own layout, of constant length; on the host until `to` moves it
    num_decodes: int  # rows of one query, which have a kernel of their own
    num_tiles: int  # tiles of queries in the other rows

    def to(self, device: torch.device) -> AttentionWork:
        return replace(self, items=self.items.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The tokens of one forward pass, and where their keys and values live. Rows of queries are ragged; a decode is a
    row of one query, a prefill chunk a row of several.
    """

    positions: Tensor  # int32 [num_tokens], each token's position in its own sequence; consecutive within a row
    query_starts: Tensor  # int32 [num_sequences + 1], row r owns tokens query_starts[r]:query_starts[r + 1]
    block_tables: (
        Tensor  # int32 [num_sequences, max_blocks], page ids; entries past a sequence's length are unspecified
    )
    work: AttentionWork | None = None  # None: the device needs none
    # int64 [num_tokens], page id · block_size + slot in the page of each token; -1 for padding, which is not written.
    # None: it follows from the three fields above. On a GPU it is computed once per step instead of once per layer.
    slot_mapping: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes and types that the attention of all layers shares."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int  # slots per page
    dtype: torch.dtype  # of queries and outputs
    kv_dtype: torch.dtype  # of pages: `dtype` or float8_e4m3fn


@dataclass(frozen=True, slots=True)
class KVPages:
    """One layer's paged KV cache. The order of elements inside a page depends on the `Ops`: other code moves whole
    pages."""

    keys: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]
    values: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]
    # Factors that turn stored values back into keys and values. Only fp8 pages have factors other than 1.
    key_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def copy_blocks(self, sources: Tensor, destinations: Tensor) -> None:
        """Copies whole pages, int64 [n] to int64 [n]. Reads all of them before it writes any."""
        self.keys[destinations] = self.keys[sources]
        self.values[destinations] = self.values[sources]


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """Complete sequences side by side, as an encoder computes them."""

    positions: Tensor  # int32 [num_tokens], each token's position in its own sequence
    query_starts: Tensor  # int32 [num_sequences + 1], sequence r owns tokens query_starts[r]:query_starts[r + 1]
    lengths: tuple[int, ...]  # tokens of each sequence, on the host


class Linear(Protocol):
    """A weight in the layout that its device computes with fastest. It is the only copy of the weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features], with the bias added if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one decoder layer, in the operations' own layout."""

    config: LayerConfig
    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (num_heads + 2 * num_kv_heads) * head_dim
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    output: Linear  # num_heads * head_dim -> hidden
    post_attention_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden


class RunLayers(Protocol):
    """Runs all layers of a step, and the norm that follows them."""

    def __call__(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        """x [num_tokens, hidden]: the residual stream after the first layer's norm. x and residual are overwritten.
        sampled int64 [n]: indices of the tokens to return. Returns [n, hidden]."""
        ...


class Ops(Protocol):
    """The operations of one device. Activations are [num_tokens, features], contiguous, in `dtype`."""

    name: str
    device: torch.device
    dtype: torch.dtype
    batch_invariant: bool
    fp8_kv_cache: bool  # whether pages can be float8_e4m3fn instead of `dtype`

    def computes_with(self, weight: QuantizedWeight) -> bool:
        """Returns whether `linear` takes such a weight and computes as its class defines. Other weights must be turned
        into floats first."""
        ...

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """Takes over `weight` [out_features, in_features] (any float dtype, or quantized) and returns it ready to
        multiply.
        """
        ...

    def embedding(self, token_ids: Tensor, linear: Linear) -> Tensor:
        """Returns dequantized rows of a weight that `linear` took over, so that tied embeddings need no second copy.
        int64 [n] -> [n, in_features].
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) · weight over the last dimension of [..., features] (Zhang and Sennrich, 2019)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x, in place; returns rms_norm(residual)."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) · up, with gate the first and up the second half of the last dimension."""
        ...

    def gelu_mul(self, gate_up: Tensor, *, tanh: bool) -> Tensor:
        """gelu(gate) · up, as in silu_mul; by tanh's approximation or by erf (Hendrycks and Gimpel, 2016)."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        """LayerNorm of v = x + residual: (v - mean(v)) / sqrt(var(v) + eps) · weight + bias over the last dimension of
        [num_tokens, features] (Ba et al., 2016, section 3)."""
        ...

    def gelu(self, x: Tensor, *, tanh: bool) -> Tensor:
        """x · Φ(x), by tanh's approximation or by erf (Hendrycks and Gimpel, 2016)."""
        ...

    def full_attention(self, q: Tensor, k: Tensor, v: Tensor, batch: WholeSequences, scale: float) -> Tensor:
        """Attention of every token over all tokens of its own sequence, before and after it.

        q, k, v [num_tokens, num_heads, head_dim], each may be a view into one fused projection (last dimension
        contiguous) -> [num_tokens, num_heads * head_dim].
        """
        ...

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        """totals[i] += x[starts[i]] + ... + x[starts[i + 1] - 1], in place. Adds in that order, so that a sum made in
        several calls has the same bits as one made in a single call. totals float32 [n, features], x [num_tokens,
        features], starts [n + 1] on the host."""
        ...

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, batch: AttentionBatch, pages: KVPages
    ) -> None:
        """Rotates q and k in place (rotate-half form), then writes k and v of every token to its page slot.

        q [num_tokens, num_heads, head_dim]; k, v [num_tokens, num_kv_heads, head_dim]; each may be a view into one
        fused projection (last dimension contiguous). cos_sin [max_positions, head_dim]: cosines in the first, sines
        in the second half, float32. Token t of row r goes to page block_tables[r, position // block_size], slot
        position % block_size, divided by the pages' scales.
        """
        ...

    def fuse_layers(
        self, config: ModelConfig, layers: Sequence[Layer], rotations: Sequence[Tensor], norm: Tensor
    ) -> RunLayers | None:
        """Returns a function that runs all layers in one call, with the same bits as layer by layer; None if the device
        cannot fuse them. `rotations`: `cos_sin` of each layer; `norm`: weight of the norm after the last layer."""
        ...

    def prepare_attention(self, shape: AttentionShape, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Allocates the memory that attention needs beside the pages. Call it once, before the first step and before
        free memory is measured. Raises ValueError for a shape that is not supported."""
        ...

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        """Returns `AttentionBatch.work` for a batch with these fields, given on the host; None if none is needed."""
        ...

    def paged_attention(
        self,
        q: Tensor,
        batch: AttentionBatch,
        pages: KVPages,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Causal attention of every query over its own sequence's pages up to and including its own position.

        q [num_tokens, num_heads, head_dim] -> [num_tokens, num_heads * head_dim]. Query head h reads KV head
        h // (num_heads / num_kv_heads). With `sliding_window` w, a query at position p sees positions p - w + 1 .. p.
        With `soft_cap` c, a score s (scaled) counts as c · tanh(s / c) (Gemma 2, section 2).
        """
        ...

    def sample_gumbel(self, logits: Tensor, seeds: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
        """argmax over tokens of logits + Gumbel noise from Philox4x32-10 (Salmon et al., 2011). int64 [n].

        logits [n, vocab] float32, already divided by the temperature; -inf is never drawn. seeds int64 [n] (bits of a
        uint64), positions and choice_indices int32 [n]. Key = (seed low, seed high); counter = (position, choice index,
        token id // 4, 0); word token id % 4 of the output x gives u = (x + 0.5) · 2⁻³² and noise -log(-log1p(-u)).
        Ties go to the lowest token id.
        """
        ...
