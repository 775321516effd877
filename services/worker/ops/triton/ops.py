"""`Ops` for NVIDIA GPUs: Triton kernels, and cuBLAS for matrix products.

No operation waits for the device, and no launch depends on a tensor's content, so a step can be recorded as a CUDA
graph. With `batch_invariant`, `matmul.py` replaces cuBLAS, and no product is split over K. Norms, activations,
rotations and sampling are always batch-invariant: how a row is divided among programs and tiles depends only on its
width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from services.worker.ops import interface
from services.worker.ops.full_mask import full_mask
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
    Rotation,
    RunLayers,
    WholeSequences,
)
from services.worker.ops.triton import activation, quantized_linear, rms_norm, rope
from services.worker.ops.triton.attention.paged import PagedAttention
from services.worker.ops.triton.dequantize import Scratch
from services.worker.ops.triton.experts import GroupedExperts
from services.worker.ops.triton.linear import HeadwiseLinear, Linear, create_linear, to_dense
from services.worker.ops.triton.quantized_layers import QuantizedLayers
from services.worker.ops.triton.sampling.pipeline import sample_gumbel
from services.worker.ops.triton.segments import add_segments
from services.worker.quantization.kinds import QuantizedWeight, Weight

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class TritonOps:
    """See `interface.Ops`. `prepare_attention` allocates the memory for partial results of attention."""

    name = "triton"
    fp8_kv_cache = True

    def __init__(self, device: torch.device, dtype: torch.dtype, *, batch_invariant: bool = False) -> None:
        """Raises ValueError if the kernels do not support `dtype`."""
        if dtype not in DTYPES:
            raise ValueError(f"the GPU kernels compute in bfloat16, float16 and float32, not {dtype}")
        self.device = device
        self.dtype = dtype
        self.batch_invariant = batch_invariant
        self._attention: PagedAttention | None = None
        self._scratch = Scratch(device, dtype)

    def computes_with(self, weight: QuantizedWeight) -> bool:
        return quantized_linear.computes_with(weight, self.device)

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """Raises TypeError for a weight for which `computes_with` returns False."""
        if not isinstance(weight, Tensor) and not self.computes_with(weight):
            raise TypeError(f"the GPU kernels do not support the groups or the type of this {type(weight).__name__}")
        return create_linear(
            weight, bias, self.device, self.dtype, batch_invariant=self.batch_invariant, scratch=self._scratch
        )

    def headwise_linear(self, weight: Tensor) -> HeadwiseLinear:
        moved = weight.to(self.device, self.dtype).contiguous()
        return HeadwiseLinear(moved, batch_invariant=self.batch_invariant)

    def experts(
        self, gate_up: Sequence[interface.Linear], down: Sequence[interface.Linear], activation: Activate
    ) -> Experts:
        """The kernels multiply by floats. Quantized matrices are turned into them."""
        return GroupedExperts([*map(to_dense, gate_up)], [*map(to_dense, down)], activation)

    def embedding(self, token_ids: Tensor, linear: object) -> Tensor:
        if not isinstance(linear, Linear):
            raise TypeError(f"embedding needs a result of linear(), not {type(linear).__name__}")
        return linear.rows(token_ids)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.add_rms_norm(x, residual, weight, eps)

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        return activation.activation(x, kind)

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        return activation.gated_activation(gate_up, kind)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return torch.tanh(x / cap) * cap

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        return functional.layer_norm(x if residual is None else x + residual, x.shape[-1:], weight, bias, eps)

    def full_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: WholeSequences,
        form: AttentionForm,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Launches torch's attention kernel once per sequence, so that the bits of a sequence's result do not depend on
        the lengths of other sequences."""
        if rotation is not None:
            # Rotation reads only the positions of the batch.
            own = AttentionBatch(batch.positions, batch.query_starts, batch.positions.new_zeros(0, 0))
            rope.rope(q, rotation, own)
            rope.rope(k, rotation, own)
        parts = []
        for of_one in zip(*(torch.split(x, list(batch.lengths)) for x in (q, k, v)), strict=True):
            queries, keys, values = (x.transpose(0, 1).unsqueeze(0) for x in of_one)  # [1, num_heads, length, head_dim]
            mask = full_mask(form, queries.shape[2], self.device)
            mask = None if mask is None else mask.to(q.dtype)
            attended = functional.scaled_dot_product_attention(
                queries, keys, values, mask, scale=form.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            parts.append(attended[0].transpose(0, 1).flatten(1))
        return torch.cat(parts)

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        add_segments(totals, x, starts)

    def rope(self, x: Tensor, rotation: Rotation, batch: AttentionBatch) -> None:
        rope.rope(x, rotation, batch)

    def write_kv(self, k: Tensor, v: Tensor | None, batch: AttentionBatch, pages: KVPages) -> None:
        rope.write_kv(k, v, batch, pages)

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, batch: AttentionBatch, pages: KVPages
    ) -> None:
        rope.rope_and_write_kv(q, k, v, rotation, batch, pages)

    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        return QuantizedLayers(self, layers, norm) if QuantizedLayers.takes(layers) else None

    def prepare_attention(
        self, shapes: Collection[AttentionShape], max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self._attention = PagedAttention(
            shapes, self.device, max_num_seqs, max_num_batched_tokens, batch_invariant=self.batch_invariant
        )

    @property
    def attention(self) -> PagedAttention:
        if self._attention is None:
            raise RuntimeError("prepare_attention was not called")
        return self._attention

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork:
        return self.attention.plan(query_starts, positions)

    def paged_attention(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        return self.attention(q, batch, pages, form)

    def sample_gumbel(self, logits: Tensor, seeds: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
        return sample_gumbel(logits, seeds, positions, choice_indices)
