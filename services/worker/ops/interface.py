"""The interface of the operations that a decoder layer is made of. Each kind of device implements it.

A model (`services/worker/models/`) is written once, for `Ops`. Implementations: `reference.py` (plain torch, for any
device; tests compare the others with it), `cpu/` (compiled C, with a fixed order of reduction) and `triton/` (NVIDIA
GPUs).

Numerics: if an implementation sets `batch_invariant`, the bits of each row (token) depend only on the row's own inputs
and on the pages of its sequence. They do not depend on the number of rows in the call, on the row's place among them,
or on how a prompt was cut into chunks.
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

    `num_decodes` and `num_tiles` are upper bounds that set the size of the kernels' launches; `items` holds the exact
    numbers. So a launch that a CUDA graph recorded can serve every batch within these bounds.
    """

    items: Tensor  # int32, on the host until `to` copies it; its layout and constant length depend on the Ops
    num_decodes: int  # rows (sequences) with one query that a separate kernel computes
    num_tiles: int  # tiles into which the queries of all other rows are cut

    def to(self, device: torch.device) -> AttentionWork:
        return replace(self, items=self.items.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The tokens of one forward pass, and the places of their keys and values. The tokens of one sequence are a row of
    queries: one query in a decode, several in a chunk of prefill. The rows are concatenated.
    """

    positions: Tensor  # int32 [num_tokens], each token's position in its own sequence; consecutive within a row
    query_starts: Tensor  # int32 [num_sequences + 1], row r owns tokens query_starts[r]:query_starts[r + 1]
    block_tables: (
        Tensor  # int32 [num_sequences, max_blocks], page ids; entries past a sequence's length are unspecified
    )
    work: AttentionWork | None = None  # None: the kernels of this device use no `AttentionWork`
    # int64 [num_tokens], for each token: page id · block_size + the token's slot in the page. -1 for padding, for which
    # nothing is written. None: each layer derives these numbers from positions, query_starts and block_tables. A GPU
    # computes them only once per step.
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
    """One layer's paged KV cache. Each `Ops` chooses the order of elements inside a page, so other code only moves
    whole pages."""

    keys: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]
    values: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]
    # Factors that turn stored values back into keys and values. Only fp8 pages have factors other than 1.
    key_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def copy_blocks(self, sources: Tensor, destinations: Tensor) -> None:
        """Copies page `sources[i]` to page `destinations[i]`, for each i. Both hold page ids, int64 [n]. Reads all
        sources before it writes a destination."""
        self.keys[destinations] = self.keys[sources]
        self.values[destinations] = self.values[sources]


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """The tokens of one forward pass of an encoder: whole sequences, concatenated."""

    positions: Tensor  # int32 [num_tokens], each token's position in its own sequence
    query_starts: Tensor  # int32 [num_sequences + 1], sequence r owns tokens query_starts[r]:query_starts[r + 1]
    lengths: tuple[int, ...]  # tokens of each sequence, on the host


class Linear(Protocol):
    """A projection. It holds the only copy of its weight, in the layout with which its device computes fastest."""

    def __call__(self, x: Tensor) -> Tensor:
        """Projects [num_tokens, in_features] to [num_tokens, out_features], and adds the bias if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one decoder layer, in the layout of one `Ops`."""

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
    """Runs all layers of a model for one step, and the norm after the last layer."""

    def __call__(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        """Returns the hidden states of the tokens at the indices `sampled` (int64 [n]), [n, hidden].

        residual [num_tokens, hidden]: the embeddings; x [num_tokens, hidden]: the first layer's norm of residual. Both
        are overwritten."""
        ...


class Ops(Protocol):
    """The operations of one device. Activations are [num_tokens, features], contiguous, in `dtype`."""

    name: str
    device: torch.device
    dtype: torch.dtype
    batch_invariant: bool
    fp8_kv_cache: bool  # whether pages can be float8_e4m3fn instead of `dtype`

    def computes_with(self, weight: QuantizedWeight) -> bool:
        """Returns whether `linear` takes a weight of this format and computes the product as the weight's class defines
        it. Other weights must be turned into floats first."""
        ...

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """Returns the projection with `weight` [out_features, in_features], in any float dtype or quantized. The caller
        must not use `weight` afterwards.
        """
        ...

    def embedding(self, token_ids: Tensor, linear: Linear) -> Tensor:
        """Returns the rows `token_ids` (int64 [n]) of the weight of `linear`, dequantized: [n, in_features]. Reads the
        layout that `linear` computes with, so that tied embeddings need no second copy of the weight.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns x / sqrt(mean(x²) + eps) · weight, with the mean over the last dimension of x [..., features] (Zhang
        and Sennrich, 2019)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds x to residual in place, and returns the rms_norm of the sum."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Returns silu(gate) · up, where gate is the first and up the second half of the last dimension."""
        ...

    def gelu_mul(self, gate_up: Tensor, *, tanh: bool) -> Tensor:
        """Returns gelu(gate) · up, with gate and up as in `silu_mul`. `tanh`: see `gelu`."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        """Returns the LayerNorm of v = x + residual (Ba et al., 2016, section 3): (v - mean(v)) / sqrt(var(v) + eps) ·
        weight + bias, with mean and variance over the last dimension of [num_tokens, features]."""
        ...

    def gelu(self, x: Tensor, *, tanh: bool) -> Tensor:
        """Returns x · Φ(x) (Hendrycks and Gimpel, 2016). Φ is computed by the tanh approximation if `tanh`, else by
        erf."""
        ...

    def full_attention(self, q: Tensor, k: Tensor, v: Tensor, batch: WholeSequences, scale: float) -> Tensor:
        """Returns the attention of every token over all tokens of its own sequence, before and after it: [num_tokens,
        num_heads * head_dim].

        q, k, v: [num_tokens, num_heads, head_dim]. Each can be a view of one joined projection, with a contiguous last
        dimension.
        """
        ...

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        """Adds x[starts[i]], ..., x[starts[i + 1] - 1] to totals[i] in place, one after the other in this order. So a
        sum made in several calls has the same bits as one made in a single call. totals: float32 [n, features]; x:
        [num_tokens, features]; starts: [n + 1], on the host."""
        ...

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, batch: AttentionBatch, pages: KVPages
    ) -> None:
        """Rotates q and k in place (rotate-half form), then writes k and v of every token to its page slot.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]. Each can be a view of one
        joined projection, with a contiguous last dimension. cos_sin: float32 [max_positions, head_dim], with cosines in
        the first and sines in the second half of a row. A token of row r is written to page block_tables[r, position //
        block_size], slot position % block_size; k and v are divided by the pages' scales.
        """
        ...

    def fuse_layers(
        self, config: ModelConfig, layers: Sequence[Layer], rotations: Sequence[Tensor], norm: Tensor
    ) -> RunLayers | None:
        """Returns a function that runs all layers in one call, with the same bits as one call per operation. Returns
        None if the device cannot fuse the layers. `rotations`: `cos_sin` of each layer; `norm`: weight of the norm
        after the last layer."""
        ...

    def prepare_attention(self, shape: AttentionShape, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Allocates the memory that attention needs beside the pages. Call it once, before the first step and before
        free memory is measured. Raises ValueError for a shape that is not supported."""
        ...

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        """Returns `AttentionBatch.work` for a batch with these `query_starts` and `positions`. Returns None if this
        device's kernels do not use `work`."""
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
        """Returns the causal attention of every query over the pages of its sequence, up to and including the query's
        position: [num_tokens, num_heads * head_dim].

        q: [num_tokens, num_heads, head_dim]. Query head h reads KV head h // (num_heads / num_kv_heads). With
        `sliding_window` w, a query at position p attends to positions p - w + 1 .. p. With `soft_cap` c, a score s,
        after multiplication by `scale`, is replaced by c · tanh(s / c) (Gemma 2, section 2).
        """
        ...

    def sample_gumbel(self, logits: Tensor, seeds: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
        """Samples one token id per row: the argmax of logits + Gumbel noise from Philox4x32-10 (Salmon et al., 2011).
        Returns int64 [n].

        logits [n, vocab] float32, already divided by the temperature; -inf is never drawn. seeds int64 [n] (bits of a
        uint64), positions and choice_indices int32 [n]. Philox's key is (low, high 32 bits of the seed); its counter is
        (position, choice index, token id // 4, 0). Philox's output has four words. Let x be the word with index
        token id % 4, and u = (x + 0.5) · 2⁻³². The noise of the token is -log(-log1p(-u)). Ties go to the lowest token
        id.
        """
        ...
