"""Refuses tensors whose type, shape or strides the C kernels would misread. Does not read the tensors' data."""

from __future__ import annotations

import torch
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, KVPages

MAX_HEAD_DIM = 256  # attention.c keeps a tile of rows of this length on its stack


def check_heads(q: Tensor, batch: AttentionBatch, pages: KVPages) -> tuple[int, int]:
    """Returns the number of KV heads and the head size. Raises ValueError if the kernels cannot read q, batch or pages,
    or if their shapes do not agree."""
    _, kv_heads, _, head_dim = pages.keys.shape
    check_pages(pages)
    if q.dtype is not torch.float32 or q.dim() != 3 or q.shape[2] != head_dim or q.stride(2) != 1:
        raise ValueError(f"q must be float32 [num_tokens, num_heads, {head_dim}], last dimension contiguous")
    if q.shape[1] % kv_heads or head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"{q.shape[1]} heads must be a multiple of {kv_heads} KV heads, and head_dim must be at most "
            f"{MAX_HEAD_DIM}, not {head_dim}"
        )
    check_batch(batch, q.shape[0])
    return kv_heads, head_dim


def check_pages(pages: KVPages) -> None:
    keys, values = pages.keys, pages.values
    _, _, block_size, head_dim = keys.shape
    page = (block_size * head_dim, head_dim, 1)
    if keys.dtype is not torch.float32 or values.dtype is not torch.float32 or values.shape != keys.shape:
        raise ValueError("pages must be float32, keys and values in the same shape")
    if pages.key_scale != 1.0 or pages.value_scale != 1.0:
        raise ValueError("float32 pages must have no scales")
    if keys.stride()[1:] != page or values.stride()[1:] != page:
        raise ValueError("a page's [num_kv_heads, block_size, head_dim] must be contiguous")


def check_batch(batch: AttentionBatch, num_tokens: int) -> None:
    for x in (batch.positions, batch.query_starts, batch.block_tables):
        if x.dtype is not torch.int32 or not x.is_contiguous():
            raise ValueError("positions, query_starts and block_tables must be contiguous int32")
    if batch.positions.shape != (num_tokens,) or batch.query_starts.shape[0] != batch.block_tables.shape[0] + 1:
        raise ValueError("positions must be [num_tokens], query_starts [num_sequences + 1]")
