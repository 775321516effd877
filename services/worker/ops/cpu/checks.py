"""Refuses tensors whose type, shape or strides the C kernels would misread. Does not read the tensors' data."""

from __future__ import annotations

import torch
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, KVPages, Rotation

MAX_HEAD_DIM = 576  # attention.c keeps a tile of rows on its stack


def check_heads(q: Tensor, batch: AttentionBatch, pages: KVPages) -> None:
    """Raises ValueError if q, batch and pages disagree about the heads."""
    _, num_kv_heads, _, key_dim = pages.keys.shape
    check_pages(pages)
    if q.dtype is not torch.float32 or q.dim() != 3 or q.shape[2] != key_dim or q.stride(2) != 1:
        raise ValueError(f"q must be float32 [num_tokens, num_heads, {key_dim}], last dimension contiguous")
    if q.shape[1] % num_kv_heads:
        raise ValueError(f"{q.shape[1]} query heads do not divide among {num_kv_heads} KV heads")
    check_batch(batch, q.shape[0])


def check_kv(k: Tensor, v: Tensor | None, batch: AttentionBatch, pages: KVPages) -> None:
    """Raises ValueError if k, v, batch and pages disagree."""
    check_pages(pages)
    check_batch(batch, k.shape[0])
    if (v is None) != pages.is_latent:
        raise ValueError("v must be given unless the pages are latent, and only then")
    for x, dim in ((k, pages.keys.shape[3]), (v, pages.value_dim)):
        shape = (batch.positions.shape[0], pages.keys.shape[1], dim)
        if x is not None and (x.dtype is not torch.float32 or x.shape != shape or x.stride(2) != 1):
            raise ValueError(f"k and v must be float32, {list(shape)} here, last dimension contiguous")


def check_rotation(heads: Tensor, rotation: Rotation, batch: AttentionBatch) -> None:
    """Raises ValueError if `rotation` does not fit `heads` [num_tokens, heads, head_dim]."""
    cos_sin = rotation.cos_sin
    if heads.dtype is not torch.float32 or heads.dim() != 3 or heads.stride(2) != 1:
        raise ValueError("heads must be float32 [num_tokens, heads, head_dim], last dimension contiguous")
    if not is_plain(cos_sin) or cos_sin.shape[1] % 2 or cos_sin.shape[1] > heads.shape[2]:
        raise ValueError(f"cos_sin must be contiguous float32 [max_positions, even number up to {heads.shape[2]}]")
    check_batch(batch, heads.shape[0])


def check_form(form: AttentionForm, num_heads: int) -> None:
    for name, limit in (("sliding window", form.sliding_window), ("chunk", form.chunk)):
        if limit is not None and limit < 1:
            raise ValueError(f"a {name} must have at least 1 position, not {limit}")
    if form.sliding_window is not None and form.chunk is not None:
        raise ValueError("a layer has either a sliding window or chunks")
    if form.soft_cap is not None and form.soft_cap <= 0:
        raise ValueError(f"a soft cap must be above 0, not {form.soft_cap}")
    bias = form.distance_bias
    if bias is not None and (not is_plain(bias) or bias.dim() != 2 or len(bias) != num_heads or not bias.shape[1] % 2):
        raise ValueError(f"a bias by distance must be contiguous float32 [{num_heads}, odd number]")
    if form.lookahead < 0:
        raise ValueError(f"a query cannot see {form.lookahead} keys after its own")
    for of_heads in (form.slopes, form.sinks):
        if of_heads is not None and (not is_plain(of_heads) or of_heads.shape != (num_heads,)):
            raise ValueError(f"slopes and sinks must be contiguous float32 [{num_heads}]")


def check_pages(pages: KVPages) -> None:
    _, num_kv_heads, block_size, key_dim = pages.keys.shape
    if pages.key_scale != 1.0 or pages.value_scale != 1.0:
        raise ValueError("float32 pages must have no scales")
    for x, dim in zip(pages.tensors, (key_dim, pages.value_dim), strict=False):
        if x.dtype is not torch.float32 or x.shape != (len(pages.keys), num_kv_heads, block_size, dim):
            raise ValueError("pages must be float32, keys and values alike in all but the last dimension")
        if x.stride()[1:] != (block_size * dim, dim, 1):
            raise ValueError("a page's [num_kv_heads, block_size, dim] must be contiguous")
    if not 0 < max(key_dim, pages.value_dim) <= MAX_HEAD_DIM or (pages.is_latent and pages.value_dim > key_dim):
        raise ValueError(
            f"keys of {key_dim} and values of {pages.value_dim} dimensions are not supported (at most {MAX_HEAD_DIM})"
        )


def check_batch(batch: AttentionBatch, num_tokens: int) -> None:
    for x in (batch.positions, batch.query_starts, batch.block_tables):
        if x.dtype is not torch.int32 or not x.is_contiguous():
            raise ValueError("positions, query_starts and block_tables must be contiguous int32")
    if batch.positions.shape != (num_tokens,) or batch.query_starts.shape[0] != batch.block_tables.shape[0] + 1:
        raise ValueError("positions must be [num_tokens], query_starts [num_sequences + 1]")


def is_plain(x: Tensor) -> bool:
    """Returns whether C can read `x` as contiguous float32 from its first address."""
    return x.dtype is torch.float32 and x.is_cpu and x.is_contiguous()
