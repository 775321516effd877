"""`Ops` for CPUs in float32, on the compiled kernels. Batch-invariant bit for bit, with any number of threads.

The Python code checks types, shapes and contiguity before it calls a kernel. It does not check block ids, positions and
`query_starts`, because the worker has validated their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, get_num_threads

from services.worker.architectures import ModelConfig
from services.worker.ops.cpu import library
from services.worker.ops.cpu.checks import check_heads
from services.worker.ops.cpu.full_attention import FullAttention
from services.worker.ops.cpu.layers import FusedLayers
from services.worker.ops.cpu.linear import PackedLinear, is_plain
from services.worker.ops.cpu.quantized_linear import QuantizedLinear
from services.worker.ops.interface import (
    AttentionBatch,
    AttentionShape,
    AttentionWork,
    KVPages,
    Layer,
    RunLayers,
    WholeSequences,
)
from services.worker.quantization.kinds import QuantizedWeight, Weight

# Elementwise calls with fewer elements than this take at most about 20 us and do not release the GIL. Whenever a call
# releases the GIL, another thread can acquire the GIL and delay the step. A step has hundreds of short calls.
HELD_BELOW = 50_000


class CPUOps:
    """See `interface.Ops`. `level`: one of `build.levels`; None: the best one that this processor supports. Raises
    `library.LibraryError` if the kernels cannot be loaded."""

    name = "cpu"
    device = torch.device("cpu")
    dtype = torch.float32
    batch_invariant = True
    fp8_kv_cache = False

    def __init__(self, level: str | None = None) -> None:
        self._library = library.load(level)
        self._functions = self._library.functions
        self._held = self._library.held
        self.level = self._library.level
        self._full_attention = FullAttention(self)

    def computes_with(self, weight: QuantizedWeight) -> bool:
        return QuantizedLinear.takes(weight)

    def linear(self, weight: Weight, bias: Tensor | None = None) -> PackedLinear | QuantizedLinear:
        if isinstance(weight, Tensor):
            return PackedLinear(self._library, weight, bias)
        return QuantizedLinear(self._library, weight, bias)

    def embedding(self, token_ids: Tensor, linear: object) -> Tensor:
        if not isinstance(linear, PackedLinear | QuantizedLinear):
            raise TypeError(f"embedding needs a result of linear(), not {type(linear).__name__}")
        return linear.rows(token_ids)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not x.is_contiguous():
            x = x.contiguous()  # x can be a view of heads inside a fused projection
        return self._norm(x, 0, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not is_plain(residual) or residual.shape != x.shape:
            raise ValueError("add_rms_norm needs a contiguous float32 residual of x's shape")
        return self._norm(x, residual.data_ptr(), weight, eps)

    def _norm(self, x: Tensor, residual: int, weight: Tensor, eps: float) -> Tensor:
        features = x.shape[-1]
        if not is_plain(x) or not is_plain(weight) or weight.shape != (features,):
            raise ValueError(f"rms_norm needs contiguous float32 x [..., {features}] and weight [{features}]")
        y = torch.empty_like(x)
        functions = self._held if x.numel() < HELD_BELOW else self._functions
        functions.quire_rms_norm(
            x.data_ptr(), residual, weight.data_ptr(), y.data_ptr(), x.numel() // features, features, eps,
            get_num_threads(),
        )  # fmt: skip
        return y

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if not is_plain(gate_up) or gate_up.shape[-1] % 2:
            raise ValueError("silu_mul needs contiguous float32 with an even last dimension")
        features = gate_up.shape[-1] // 2
        y = gate_up.new_empty((*gate_up.shape[:-1], features))
        functions = self._held if y.numel() < HELD_BELOW else self._functions
        functions.quire_silu_mul(gate_up.data_ptr(), y.data_ptr(), y.numel() // features, features, get_num_threads())
        return y

    def gelu_mul(self, gate_up: Tensor, *, tanh: bool) -> Tensor:
        """Computes gelu(g) · up with the kernel of `silu_mul`. In the tanh form, gelu(g) = g · σ(w) with w = g · slope,
        so the result is silu(w) · (up / slope). torch computes w and up / slope, by operations whose rounding IEEE 754
        defines. The erf form is not supported: the bits of torch's erf depend on an element's place in the tensor."""
        if not tanh:
            raise ValueError("on a CPU, gelu_mul supports only the tanh form")
        gate, up = gate_up.chunk(2, dim=-1)
        slope = 2 * (2 / math.pi) ** 0.5 * (1 + 0.044715 * gate * gate)
        return self.silu_mul(torch.cat((gate * slope, up / slope), dim=-1))

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        features = x.shape[-1]
        if not is_plain(x) or any(not is_plain(v) or v.shape != (features,) for v in (weight, bias)):
            raise ValueError(
                f"layer_norm needs contiguous float32 x [..., {features}], weight [{features}] and bias [{features}]"
            )
        if residual is not None and (not is_plain(residual) or residual.shape != x.shape):
            raise ValueError("layer_norm needs a contiguous float32 residual of x's shape")
        y = torch.empty_like(x)
        functions = self._held if x.numel() < HELD_BELOW else self._functions
        functions.quire_layer_norm(
            x.data_ptr(), 0 if residual is None else residual.data_ptr(), weight.data_ptr(), bias.data_ptr(),
            y.data_ptr(), x.numel() // features, features, eps, get_num_threads(),
        )  # fmt: skip
        return y

    def gelu(self, x: Tensor, *, tanh: bool) -> Tensor:
        if not is_plain(x):
            raise ValueError("gelu needs contiguous float32")
        y, features = torch.empty_like(x), x.shape[-1]
        functions = self._held if x.numel() < HELD_BELOW else self._functions
        functions.quire_gelu(x.data_ptr(), y.data_ptr(), x.numel() // features, features, tanh, get_num_threads())
        return y

    def full_attention(self, q: Tensor, k: Tensor, v: Tensor, batch: WholeSequences, scale: float) -> Tensor:
        return self._full_attention(q, k, v, batch, scale)

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        totals.index_add_(0, torch.from_numpy(owners), x)

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, batch: AttentionBatch, pages: KVPages
    ) -> None:
        kv_heads, head_dim = check_heads(q, batch, pages)
        for x in (k, v):
            if x.dtype is not torch.float32 or x.shape != (q.shape[0], kv_heads, head_dim) or x.stride(2) != 1:
                raise ValueError(
                    f"k and v must be float32 [{q.shape[0]}, {kv_heads}, {head_dim}], last dimension contiguous"
                )
        if not is_plain(cos_sin) or cos_sin.shape[1] != head_dim or head_dim % 2:
            raise ValueError(f"cos_sin must be contiguous float32 [max_positions, {head_dim}] with an even head_dim")
        functions = self._held if q.numel() < HELD_BELOW else self._functions
        functions.quire_rope_and_write_kv(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), cos_sin.data_ptr(), batch.positions.data_ptr(),
            batch.query_starts.data_ptr(), batch.block_tables.data_ptr(), pages.keys.data_ptr(),
            pages.values.data_ptr(), q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            pages.keys.stride(0), pages.values.stride(0), batch.block_tables.shape[0], q.shape[1], kv_heads, head_dim,
            pages.block_size, batch.block_tables.shape[1], get_num_threads(),
        )  # fmt: skip

    def fuse_layers(
        self, config: ModelConfig, layers: Sequence[Layer], rotations: Sequence[Tensor], norm: Tensor
    ) -> RunLayers | None:
        if not FusedLayers.takes(config, layers):
            return None
        return FusedLayers(self._library, config, layers, rotations, norm)

    def prepare_attention(self, shape: AttentionShape, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        pass

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        return None

    def paged_attention(
        self,
        q: Tensor,
        batch: AttentionBatch,
        pages: KVPages,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None = None,
    ) -> Tensor:
        if soft_cap is not None:
            raise ValueError("the CPU kernel does not support a soft cap")
        kv_heads, head_dim = check_heads(q, batch, pages)
        if sliding_window is not None and sliding_window < 1:
            raise ValueError(f"a sliding window must have at least 1 position, not {sliding_window}")
        tokens, heads = q.shape[:2]
        out = q.new_empty((tokens, heads * head_dim))
        self._functions.quire_paged_attention(
            q.data_ptr(), pages.keys.data_ptr(), pages.values.data_ptr(), out.data_ptr(), batch.positions.data_ptr(),
            batch.query_starts.data_ptr(), batch.block_tables.data_ptr(), q.stride(0), q.stride(1),
            pages.keys.stride(0), pages.values.stride(0), batch.block_tables.shape[0], heads, kv_heads, head_dim,
            pages.block_size, batch.block_tables.shape[1], sliding_window or 0, scale, get_num_threads(),
        )  # fmt: skip
        return out

    def sample_gumbel(self, logits: Tensor, seeds: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
        rows, vocabulary = logits.shape
        if not is_plain(logits) or vocabulary == 0:
            raise ValueError("logits must be contiguous float32 [n, vocab]")
        for x, dtype in ((seeds, torch.int64), (positions, torch.int32), (choice_indices, torch.int32)):
            if x.dtype is not dtype or x.shape != (rows,) or not x.is_contiguous():
                raise ValueError(f"seeds, positions and choice indices must be int64, int32 and int32 [{rows}]")
        out = seeds.new_empty(rows)
        self._functions.quire_sample_gumbel(
            logits.data_ptr(), seeds.data_ptr(), positions.data_ptr(), choice_indices.data_ptr(), out.data_ptr(), rows,
            vocabulary, get_num_threads(),
        )  # fmt: skip
        return out
