"""The interface of the operations that a decoder layer is made of. Each kind of device implements it.

A model (`services/worker/models/`) is written once, for `Ops`. Implementations: `reference.py` (plain torch, for any
device; tests compare the others with it), `cpu/` (compiled C, with a fixed order of reduction) and `triton/` (NVIDIA
GPUs).

Numerics: if an implementation sets `batch_invariant`, the bits of each row (token) depend only on the row's own inputs
and on the pages of its sequence. They do not depend on the number of rows in the call, on the row's place among them,
or on how a prompt was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # so that the classes here can be imported without torch, to read the size of a model
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

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
class Heads:
    """Sizes of one layer's attention."""

    num_heads: int
    num_kv_heads: int
    key_dim: int  # elements of a query and of a key
    value_dim: int
    is_latent: bool = False  # a key's first `value_dim` elements are its value, so that values take no memory

    @property
    def num_elements(self) -> int:
        """Elements that the pages hold per token."""
        return self.num_kv_heads * (self.key_dim + (0 if self.is_latent else self.value_dim))

    def shape(self, block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> AttentionShape:
        return AttentionShape(
            self.num_heads, self.num_kv_heads, self.key_dim, self.value_dim, block_size, dtype, kv_dtype, self.is_latent
        )


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes and types of the attention of some layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries and keys
    value_dim: int
    block_size: int  # slots per page
    dtype: torch.dtype  # of queries and outputs
    kv_dtype: torch.dtype  # of pages: `dtype` or float8_e4m3fn
    is_latent: bool = False  # see `Heads`


class Activation(IntEnum):
    """Activation functions. The numbers are those of the C kernels."""

    SILU = 0  # x · σ(x) (Elfwing et al., 2017)
    GELU = 1  # x · Φ(x) by erf (Hendrycks and Gimpel, 2016)
    GELU_TANH = 2  # the same by tanh's approximation
    QUICK_GELU = 3  # x · σ(1.702 x), the same by a sigmoid
    RELU = 4
    RELU_SQUARED = 5  # max(x, 0)² (So et al., 2021)
    # Only gated, gpt-oss: g · σ(1.702 g) · (u + 1), with g = min(gate, 7) and u = up within -7 .. 7.
    CLAMPED_SILU = 6
    SIGMOID = 7  # σ(x)


# What an expert computes between its two products: a gated activation by its name, or a function from the outputs of
# the first product to the inputs of the second.
Activate = Activation | Callable[["Tensor"], "Tensor"]


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How one layer's queries score the keys of their sequence, and which keys they see. Every query sees its own key.
    It sees none after it, except by `lookahead`."""

    scale: float  # factor of the product of a query and a key
    sliding_window: int | None = None  # w: a query at position p sees positions p - w + 1 .. p
    chunk: int | None = None  # c: a query at position p sees positions from p - p % c on (Llama 4); excludes a window
    soft_cap: float | None = None  # c: a score s (scaled) counts as c · tanh(s / c) (Gemma 2, section 2)
    # float32 [num_heads]: m adds m · (key position - query position) to a score (ALiBi: Press et al., 2022, section 3).
    slopes: Tensor | None = None
    # float32 [num_heads]: a score without a key. It takes its share of a head's weight and adds no value (gpt-oss).
    sinks: Tensor | None = None
    # Only in `full_attention`: keys after its own that a query sees.
    lookahead: int = 0
    # Only in `full_attention`. float32 [num_heads, 2 d + 1]: adds [h, d + key position - query position] to a score of
    # head h. Greater distances than d count as d (T5: Raffel et al., 2020, section 2.1).
    distance_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary position embedding (Su et al., 2021) of the first `rotary_dim` elements of each head. Further elements are
    left as they are."""

    cos_sin: Tensor  # float32 [max_positions, rotary_dim]: cosines in the first half, sines in the second
    # Pairs that are rotated: (0, 1), (2, 3), ... if True, else (0, half), (1, half + 1), ...
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class KVPages:
    """One layer's paged KV cache. Each `Ops` chooses the order of elements inside a page, so other code only moves
    whole pages."""

    keys: Tensor  # [num_blocks, num_kv_heads, block_size, key_dim]
    values: Tensor  # [num_blocks, num_kv_heads, block_size, value_dim]
    # Factors that turn stored values back into keys and values. Only fp8 pages have factors other than 1.
    key_scale: float = 1.0
    value_scale: float = 1.0
    # Whether `values` is a view of the first elements of `keys`: a latent cache (DeepSeek-V2, section 2.1).
    is_latent: bool = False

    @property
    def value_dim(self) -> int:
        return self.values.shape[3]

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that hold pages. A block is the same page of all of them."""
        return (self.keys,) if self.is_latent else (self.keys, self.values)

    def copy_blocks(self, sources: Tensor, destinations: Tensor) -> None:
        """Copies whole pages, int64 [n] to int64 [n]. Reads all of them before it writes any."""
        for tensor in self.tensors:
            tensor[destinations] = tensor[sources]


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


class HeadwiseLinear(Protocol):
    """A projection of each head by a weight of its own. It holds the only copy of the weights."""

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, num_heads, in_features] -> [num_tokens, num_heads, out_features]. x may be a view (last
        dimension contiguous)."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the common kind, which devices can fuse: pre-norm attention with rotary positions, then a gated MLP.
    Weights are in the operations' own layout."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries, keys and values
    rms_norm_eps: float
    rotation: Rotation | None
    form: AttentionForm
    activation: Activation  # of the gate
    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (num_heads + 2 * num_kv_heads) * head_dim
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    output: Linear  # num_heads * head_dim -> hidden
    post_attention_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden


class Experts(Protocol):
    """The feed-forward layers of a mixture of experts (Shazeer et al., 2017), which `Ops.experts` took over."""

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Returns, for each token, the sum of its experts' outputs, each times its weight. The sum runs in the order in
        which the token's experts are given.

        x [num_tokens, hidden]; expert_ids int64 [num_tokens, k], distinct within a row; weights [num_tokens, k] in x's
        type -> [num_tokens, hidden].
        """
        ...


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

    def headwise_linear(self, weight: Tensor) -> HeadwiseLinear:
        """Returns the projection of each head with its `weight` [num_heads, out_features, in_features], in any float
        dtype. The caller must not use `weight` afterwards."""
        ...

    def experts(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: Activate) -> Experts:
        """Takes over the experts' matrices: expert e computes down[e](activation(gate_up[e](x)))."""
        ...

    def embedding(self, token_ids: Tensor, linear: Linear) -> Tensor:
        """Returns the rows `token_ids` (int64 [n]) of the weight of `linear`, dequantized: [n, in_features]. Reads the
        layout that `linear` computes with, so that tied embeddings need no second copy of the weight.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns x / sqrt(mean(x²) + eps) · weight, with the mean over the last dimension of x [..., features] (Zhang
        and Sennrich, 2019). weight: [features] in `dtype`, or in float32, which is not rounded to `dtype`."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds x to residual in place, and returns the rms_norm of the sum."""
        ...

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """Returns the activation of each element."""
        ...

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        """Returns activation(gate) · up, with gate the first and up the second half of the last dimension."""
        ...

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap · tanh(x / cap) of each element (Gemma 2, section 2)."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        """Returns the LayerNorm of v = x + residual (Ba et al., 2016, section 3): (v - mean(v)) / sqrt(var(v) + eps) ·
        weight + bias, with mean and variance over the last dimension of x [..., features]. Without a residual, x can be
        a view of heads inside a fused projection."""
        ...

    def full_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: WholeSequences,
        form: AttentionForm,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Returns the attention of every token over the tokens of its own sequence that `form` lets it see, before and
        after it: [num_tokens, num_heads * head_dim]. Rotates q and k in place first, if there is a rotation. Of
        `form`, it takes scale, sliding_window, lookahead and distance_bias.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]. Each can be a view of one
        joined projection, with a contiguous last dimension.
        """
        ...

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        """Adds x[starts[i]], ..., x[starts[i + 1] - 1] to totals[i] in place, one after the other in this order. So a
        sum made in several calls has the same bits as one made in a single call. totals: float32 [n, features]; x:
        [num_tokens, features]; starts: [n + 1], on the host."""
        ...

    def rope(self, x: Tensor, rotation: Rotation, batch: AttentionBatch) -> None:
        """Rotates the heads x [num_tokens, heads, head_dim] in place. x may be a view (last dimension contiguous)."""
        ...

    def write_kv(self, k: Tensor, v: Tensor | None, batch: AttentionBatch, pages: KVPages) -> None:
        """Writes k and v of every token to its page slot.

        k [num_tokens, num_kv_heads, key_dim]; v [num_tokens, num_kv_heads, value_dim], None if the pages are
        latent; each may be a view into one fused projection (last dimension contiguous). Token t of row r goes to page
        block_tables[r, position // block_size], slot position % block_size, divided by the pages' scales.
        """
        ...

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, batch: AttentionBatch, pages: KVPages
    ) -> None:
        """`rope` of q and of k, then `write_kv`, in one call with the same bits."""
        ...

    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        """Returns a function that runs all layers in one call, with the same bits as layer by layer; None if the device
        cannot fuse them. `norm`: weight of the norm after the last layer."""
        ...

    def prepare_attention(
        self, shapes: Collection[AttentionShape], max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        """Allocates the memory that attention needs beside the pages. Call it once, before the first step and before
        free memory is measured. `shapes`: the distinct shapes of the layers. Raises ValueError for shapes that are not
        supported."""
        ...

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        """Returns `AttentionBatch.work` for a batch with these `query_starts` and `positions`. Returns None if this
        device's kernels do not use `work`."""
        ...

    def paged_attention(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        """Causal attention of every query over its own sequence's pages up to and including its own position.

        q [num_tokens, num_heads, key_dim] -> [num_tokens, num_heads * value_dim]. Query head h reads KV head
        h // (num_heads / num_kv_heads).
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
