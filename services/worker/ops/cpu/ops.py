"""`Ops` for CPUs in float32, on the compiled kernels. Batch-invariant bit for bit, with any number of threads.

The Python code checks types, shapes and contiguity before it calls a kernel. It does not check block ids, positions and
`query_starts`, because the worker has validated their values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ctypes import byref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, get_num_threads

from services.worker.ops.cpu import library
from services.worker.ops.cpu.checks import MAX_HEAD_DIM, check_form, check_heads, check_kv, check_rotation, is_plain
from services.worker.ops.cpu.full_attention import FullAttention
from services.worker.ops.cpu.headwise_linear import PackedHeads
from services.worker.ops.cpu.layers import FusedLayers
from services.worker.ops.cpu.linear import PackedLinear
from services.worker.ops.cpu.quantized_linear import QuantizedLinear
from services.worker.ops.cpu.structs import AttentionStruct, HeadsStruct
from services.worker.ops.interface import (
    Activate,
    Activation,
    AttentionBatch,
    AttentionForm,
    AttentionShape,
    AttentionWork,
    Experts,
    KVPages,
    Layer,
    Linear,
    Rotation,
    RunLayers,
    WholeSequences,
)
from services.worker.ops.looped_experts import LoopedExperts
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

    def headwise_linear(self, weight: Tensor) -> PackedHeads:
        return PackedHeads(self._library, weight)

    def experts(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: Activate) -> Experts:
        return LoopedExperts(self, gate_up, down, activation)

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

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        if not is_plain(x) or kind is Activation.CLAMPED_SILU:
            raise ValueError("activation needs contiguous float32, and a kind that is not only gated")
        y, features = torch.empty_like(x), x.shape[-1]
        functions = self._held if x.numel() < HELD_BELOW else self._functions
        functions.quire_activate(
            x.data_ptr(), y.data_ptr(), x.numel() // features, features, kind, get_num_threads()
        )  # fmt: skip
        return y

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        if not is_plain(gate_up) or gate_up.shape[-1] % 2:
            raise ValueError("gated_activation needs contiguous float32 with an even last dimension")
        features = gate_up.shape[-1] // 2
        y = gate_up.new_empty((*gate_up.shape[:-1], features))
        functions = self._held if y.numel() < HELD_BELOW else self._functions
        functions.quire_gated_activation(
            gate_up.data_ptr(), y.data_ptr(), y.numel() // features, features, kind, get_num_threads()
        )
        return y

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        if not is_plain(x):
            raise ValueError("soft_cap needs contiguous float32")
        y, features = torch.empty_like(x), x.shape[-1]
        functions = self._held if x.numel() < HELD_BELOW else self._functions
        functions.quire_soft_cap(x.data_ptr(), y.data_ptr(), x.numel() // features, features, cap, get_num_threads())
        return y

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        features = x.shape[-1]
        if residual is None and not x.is_contiguous():
            x = x.contiguous()  # x can be a view of heads inside a fused projection
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

    def full_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: WholeSequences,
        form: AttentionForm,
        rotation: Rotation | None = None,
    ) -> Tensor:
        return self._full_attention(q, k, v, batch, form, rotation)

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        totals.index_add_(0, torch.from_numpy(owners), x)

    def rope(self, x: Tensor, rotation: Rotation, batch: AttentionBatch) -> None:
        check_rotation(x, rotation, batch)
        self._run_heads(x, None, None, rotation, batch, None)

    def write_kv(self, k: Tensor, v: Tensor | None, batch: AttentionBatch, pages: KVPages) -> None:
        check_kv(k, v, batch, pages)
        self._run_heads(None, k, v, None, batch, pages)

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, batch: AttentionBatch, pages: KVPages
    ) -> None:
        check_heads(q, batch, pages)
        check_kv(k, v, batch, pages)
        check_rotation(q, rotation, batch)
        self._run_heads(q, k, v, rotation, batch, pages)

    def _run_heads(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor | None,
        rotation: Rotation | None,
        batch: AttentionBatch,
        pages: KVPages | None,
    ) -> None:
        work = HeadsStruct(
            positions=batch.positions.data_ptr(), query_starts=batch.query_starts.data_ptr(),
            block_tables=batch.block_tables.data_ptr(), sequences=batch.block_tables.shape[0],
            max_blocks=batch.block_tables.shape[1], threads=get_num_threads(),
        )  # fmt: skip
        num_elements = 0
        if q is not None:
            work.q, work.q_row, work.q_head, work.heads, work.key_dim = q.data_ptr(), *q.stride()[:2], *q.shape[1:]
            num_elements += q.numel()
        if k is not None:
            work.k, work.k_row, work.k_head, work.kv_heads, work.key_dim = k.data_ptr(), *k.stride()[:2], *k.shape[1:]
            num_elements += k.numel()
        if v is not None:
            work.v, work.v_row, work.v_head, work.value_dim = v.data_ptr(), *v.stride()[:2], v.shape[2]
        if rotation is not None:
            cos_sin = rotation.cos_sin
            work.cos_sin, work.rotary_dim = cos_sin.data_ptr(), cos_sin.shape[1]
            work.interleaved = rotation.interleaved
        if pages is not None:
            work.block_size = pages.block_size
            work.key_pages, work.key_block = pages.keys.data_ptr(), pages.keys.stride(0)
            if not pages.is_latent:
                work.value_pages, work.value_block = pages.values.data_ptr(), pages.values.stride(0)
        functions = self._held if num_elements < HELD_BELOW else self._functions
        functions.quire_rope_and_write_kv(byref(work))

    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        return FusedLayers(self._library, layers, norm) if FusedLayers.takes(layers) else None

    def prepare_attention(
        self, shapes: Collection[AttentionShape], max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        largest = max((max(shape.head_dim, shape.value_dim) for shape in shapes), default=0)
        if largest > MAX_HEAD_DIM:
            raise ValueError(f"keys or values have {largest} dimensions; at most {MAX_HEAD_DIM} are supported")

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        return None

    def paged_attention(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        check_heads(q, batch, pages)
        check_form(form, q.shape[1])
        num_tokens, num_heads = q.shape[:2]
        _, num_kv_heads, block_size, key_dim = pages.keys.shape
        keys, values, slopes, sinks = pages.keys, pages.values, form.slopes, form.sinks
        bias = form.distance_bias
        out = q.new_empty((num_tokens, num_heads * pages.value_dim))
        call = AttentionStruct(
            q.data_ptr(), keys.data_ptr(), None if pages.is_latent else values.data_ptr(), out.data_ptr(),
            batch.positions.data_ptr(), batch.query_starts.data_ptr(), batch.block_tables.data_ptr(),
            None if sinks is None else sinks.data_ptr(), None if slopes is None else slopes.data_ptr(),
            None if bias is None else bias.data_ptr(),
            q.stride(0), q.stride(1), keys.stride(0), values.stride(0),
            batch.block_tables.shape[0], num_heads, num_kv_heads, key_dim, pages.value_dim, block_size,
            batch.block_tables.shape[1], form.sliding_window or 0, form.chunk or 0, form.lookahead,
            0 if bias is None else bias.shape[1] // 2, form.scale, form.soft_cap or 0.0,
            get_num_threads(),
        )  # fmt: skip
        self._functions.quire_paged_attention(byref(call))
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
