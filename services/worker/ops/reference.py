"""`Ops` in plain torch, for any device and dtype. It is written to be obviously correct, not fast: tests compare the
other implementations with it.

Not batch-invariant: torch chooses different kernels for different numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

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
    Linear,
    Rotation,
    RunLayers,
    WholeSequences,
)
from services.worker.ops.looped_experts import LoopedExperts
from services.worker.quantization.kinds import (
    Fp8Weight,
    Int8Weight,
    QuantizedWeight,
    Weight,
    quantize_rows_fp8,
    quantize_rows_int8,
)

_LOW_32 = 0xFFFFFFFF
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    Activation.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
    Activation.RELU: functional.relu,
    Activation.SIGMOID: torch.sigmoid,
    Activation.RELU_SQUARED: lambda x: functional.relu(x).square(),
}


class ReferenceLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class ReferenceQuantizedLinear:
    """W8A8: quantizes each row of the input, multiplies the quantized values, then applies the scales of the rows and
    of the weight. `Fp8Weight` and `Int8Weight` define the arithmetic."""

    def __init__(self, weight: Fp8Weight | Int8Weight, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self._values = weight.values.double()  # float64, so that sums of int8 products are exact, as in int32
        self._scales = weight.scales.float().flatten()
        self._quantize_rows = quantize_rows_fp8 if isinstance(weight, Fp8Weight) else quantize_rows_int8

    def __call__(self, x: Tensor) -> Tensor:
        q, scales = self._quantize_rows(x)
        sums = functional.linear(q.double(), self._values).to(torch.float32)
        y = (sums * scales[:, None] * self._scales).to(x.dtype)
        return y if self.bias is None else y + self.bias


class ReferenceHeadwiseLinear:
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return torch.einsum("thi,hoi->tho", x, self.weight)


class ReferenceOps:
    """See `interface.Ops`. Computes norms, rotations and softmax in float32, or in float64 if `dtype` is float64."""

    name = "reference"
    batch_invariant = False
    fp8_kv_cache = False

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.compute_dtype = torch.float64 if dtype is torch.float64 else torch.float32

    def computes_with(self, weight: QuantizedWeight) -> bool:
        return True

    def linear(self, weight: Weight, bias: Tensor | None = None) -> ReferenceLinear | ReferenceQuantizedLinear:
        bias = None if bias is None else bias.to(self.device, self.dtype)
        weight = weight.to(self.device)
        if isinstance(weight, Fp8Weight | Int8Weight) and weight.quantize_activations:
            return ReferenceQuantizedLinear(weight, bias)
        floats = weight if isinstance(weight, Tensor) else weight.dequantize()
        return ReferenceLinear(floats.to(self.dtype), bias)

    def headwise_linear(self, weight: Tensor) -> ReferenceHeadwiseLinear:
        return ReferenceHeadwiseLinear(weight.to(self.device, self.dtype))

    def experts(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: Activate) -> Experts:
        return LoopedExperts(self, gate_up, down, activation)

    def embedding(self, token_ids: Tensor, linear: object) -> Tensor:
        if not isinstance(linear, ReferenceLinear | ReferenceQuantizedLinear):
            raise TypeError(f"embedding needs a result of linear(), not {type(linear).__name__}")
        if isinstance(linear, ReferenceQuantizedLinear):
            return linear.weight.select_rows(token_ids).dequantize().to(self.dtype)
        return functional.embedding(token_ids, linear.weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(self.compute_dtype)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (normed.to(x.dtype) * weight).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual += x
        return self.rms_norm(residual, weight, eps)

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        return _ACTIVATIONS[kind](x)

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        if kind is Activation.CLAMPED_SILU:
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0) + 1
            return gate * torch.sigmoid(1.702 * gate) * up
        return _ACTIVATIONS[kind](gate) * up

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return torch.tanh(x / cap) * cap

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        wide = x.to(self.compute_dtype) if residual is None else (x + residual).to(self.compute_dtype)
        weight, bias = weight.to(self.compute_dtype), bias.to(self.compute_dtype)
        return functional.layer_norm(wide, wide.shape[-1:], weight, bias, eps).to(x.dtype)

    def full_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: WholeSequences,
        form: AttentionForm,
        rotation: Rotation | None = None,
    ) -> Tensor:
        if rotation is not None:
            self.rope(q, rotation, batch)
            self.rope(k, rotation, batch)
        parts, group = [], q.shape[1] // k.shape[1]
        wide = (torch.split(x.to(self.compute_dtype), list(batch.lengths)) for x in (q, k, v))
        for queries, *of_kv_heads in zip(*wide, strict=True):
            keys, values = (x.repeat_interleave(group, 1) for x in of_kv_heads)
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * form.scale
            mask = full_mask(form, len(queries), q.device)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(parts).to(q.dtype).flatten(1)

    def add_segments(self, totals: Tensor, x: Tensor, starts: NDArray[np.int64]) -> None:
        owners = torch.repeat_interleave(torch.from_numpy(np.diff(starts)))
        totals.index_add_(0, owners.to(totals.device), x.to(totals.dtype))

    def rope(self, x: Tensor, rotation: Rotation, batch: AttentionBatch | WholeSequences) -> None:
        cos_sin = rotation.cos_sin[batch.positions.long()].to(self.compute_dtype)
        c, s = cos_sin[:, None].chunk(2, dim=-1)  # [num_tokens, 1, rotary_dim / 2]
        rotated = x[..., : cos_sin.shape[1]]
        wide = rotated.to(self.compute_dtype)
        if rotation.interleaved:
            low, high = wide[..., ::2], wide[..., 1::2]
            rotated.copy_(torch.stack((low * c - high * s, high * c + low * s), dim=-1).flatten(-2))
        else:
            low, high = wide.chunk(2, dim=-1)
            rotated.copy_(torch.cat((low * c - high * s, high * c + low * s), dim=-1))

    def write_kv(self, k: Tensor, v: Tensor | None, batch: AttentionBatch, pages: KVPages) -> None:
        positions = batch.positions.long()
        rows = torch.repeat_interleave(batch.query_starts.diff())  # [num_tokens], each token's sequence
        blocks = batch.block_tables[rows, positions // pages.block_size].long()
        slots = positions % pages.block_size
        pages.keys[blocks, :, slots] = _stored(k, pages.key_scale, pages.keys.dtype)
        if v is not None:
            pages.values[blocks, :, slots] = _stored(v, pages.value_scale, pages.values.dtype)

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, batch: AttentionBatch, pages: KVPages
    ) -> None:
        self.rope(q, rotation, batch)
        self.rope(k, rotation, batch)
        self.write_kv(k, v, batch, pages)

    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        return None

    def prepare_attention(
        self, shapes: Collection[AttentionShape], max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        pass

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        return None

    def paged_attention(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        num_heads, num_kv_heads = q.shape[1], pages.keys.shape[1]
        outputs = []
        for row, (start, end) in enumerate(pairwise(batch.query_starts.tolist())):
            seen = batch.positions[start:end].long()  # [num_queries]
            first = _first_seen(form, seen)
            at = torch.arange(int(first.min()) if len(seen) else 0, int(seen.max()) + 1 if len(seen) else 0)
            at = at.to(q.device)  # [num_keys]
            blocks = batch.block_tables[row, at // pages.block_size].long()
            slots = at % pages.block_size
            keys = pages.keys[blocks, :, slots].to(self.compute_dtype) * pages.key_scale
            values = pages.values[blocks, :, slots].to(self.compute_dtype) * pages.value_scale
            # [num_keys, num_heads, key_dim or value_dim]
            keys, values = (x.repeat_interleave(num_heads // num_kv_heads, 1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", q[start:end].to(self.compute_dtype), keys) * form.scale
            if form.soft_cap is not None:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            if form.slopes is not None:
                scores = scores + form.slopes.to(scores)[:, None, None] * (at[None, :] - seen[:, None])
            visible = (at[None, :] <= seen[:, None]) & (at[None, :] >= first[:, None])
            scores = scores.masked_fill(~visible, -torch.inf)
            if form.sinks is not None:
                sinks = form.sinks.to(scores)[:, None, None].expand(-1, len(seen), 1)
                weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype))
        return torch.cat(outputs).flatten(1)

    def sample_gumbel(self, logits: Tensor, seeds: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
        vocab = logits.shape[1]
        groups = torch.arange((vocab + 3) // 4, device=logits.device)  # token id // 4
        key = ((seeds & _LOW_32)[:, None], ((seeds >> 32) & _LOW_32)[:, None])
        counter = (positions.long()[:, None] & _LOW_32, choice_indices.long()[:, None] & _LOW_32, groups, 0 * groups)
        words = torch.stack(philox(counter, key), dim=-1).flatten(1)[:, :vocab]  # token id = 4 · group + word
        u = (words.double() + 0.5) * 2.0**-32
        return (logits.double() - torch.log(-torch.log1p(-u))).argmax(-1)


def _first_seen(form: AttentionForm, positions: Tensor) -> Tensor:
    """Returns the first position that a query at each of `positions` sees."""
    if form.chunk is not None:
        return positions - positions % form.chunk
    if form.sliding_window is not None:
        return (positions - form.sliding_window + 1).clamp(min=0)
    return torch.zeros_like(positions)


def _stored(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Returns x / scale in the type of the pages. Clamps values beyond the range of fp8, because a plain conversion
    would make them NaN or infinite."""
    if scale != 1.0:
        x = x / scale
    if dtype.itemsize == 1:
        x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    return x.to(dtype)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Returns the four output words of Philox4x32-10 (Salmon et al., 2011, section 4.2). Arguments and results are
    int64 tensors that hold uint32 values; the arguments' shapes broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high1, low1 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _LOW_32, (k1 + 0xBB67AE85) & _LOW_32
    return c0, c1, c2, c3


def _multiply(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Returns the high and the low 32 bits of the 64-bit product x · factor. The 16-bit halves of x are multiplied
    separately, so that int64 does not overflow."""
    low = (x & 0xFFFF) * factor
    high = (x >> 16) * factor + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
