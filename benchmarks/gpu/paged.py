"""Attention alone: sequences of equal length on scattered KV pages, and torch's attention for the same lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.fresh_compiler import fresh_compiler
from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, KVPages
from services.worker.ops.triton.attention.paged import PagedAttention
from services.worker.ops.triton.attention.tuning import Tuning

Work = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Load:
    """`batch` sequences of `length` tokens each, of which the last `queries` are computed."""

    batch: int
    length: int
    queries: int

    def kv_bytes(self, shape: AttentionShape) -> int:
        return 2 * self.batch * self.length * shape.num_kv_heads * shape.head_dim * shape.kv_dtype.itemsize

    def flop(self, shape: AttentionShape) -> float:
        """Returns the FLOP of both products, over the pairs that the causal mask leaves."""
        pairs = self.queries * self.length - self.queries * (self.queries - 1) / 2
        return 4 * self.batch * shape.num_heads * shape.head_dim * pairs


class PagedLoad:
    """A load in the layout of a step. It has several copies with separate pages, and each launch uses the next copy, so
    that no launch finds its keys in the L2 cache."""

    def __init__(self, shape: AttentionShape, load: Load, device: torch.device, num_copies: int) -> None:
        self._shape, self._load, self._device = shape, load, device
        blocks = -(-load.length // shape.block_size)
        count = num_copies * load.batch * blocks
        size = (count, shape.num_kv_heads, shape.block_size, shape.head_dim)
        self._pages = KVPages(_random(size, shape.kv_dtype, device), _random(size, shape.kv_dtype, device))
        scattered = np.random.default_rng(0).permutation(count).astype(np.int32)
        self._tables = torch.from_numpy(scattered.reshape(num_copies, load.batch, blocks)).to(device)
        tokens = load.batch * load.queries
        heads = shape.num_heads + 2 * shape.num_kv_heads
        self._q = _random((tokens, heads, shape.head_dim), shape.dtype, device)[:, : shape.num_heads]
        self._query_starts: NDArray[np.int32] = np.arange(0, tokens + 1, load.queries, dtype=np.int32)
        positions = np.arange(load.length - load.queries, load.length, dtype=np.int32)
        self._positions: NDArray[np.int32] = np.tile(positions, load.batch)

    def works(self, config: Tuning | None = None, *, batch_invariant: bool = False) -> list[Work]:
        """Returns one launch per copy."""
        tokens = self._load.batch * self._load.queries
        attention = PagedAttention(
            [self._shape], self._device, self._load.batch, tokens, batch_invariant=batch_invariant, config=config
        )
        work = attention.plan(self._query_starts, self._positions).to(self._device)
        positions = torch.from_numpy(self._positions).to(self._device)
        starts = torch.from_numpy(self._query_starts).to(self._device)
        batches = [AttentionBatch(positions, starts, table, work) for table in self._tables]
        form = AttentionForm(self._shape.head_dim**-0.5)
        return [partial(attention, self._q, batch, self._pages, form) for batch in batches]


def peers(shape: AttentionShape, load: Load, device: torch.device, num_copies: int) -> Iterator[tuple[str, list[Work]]]:
    """Yields torch's attention operators over contiguous keys and values of the same lengths, without paging."""
    q = _random((load.batch, shape.num_heads, load.queries, shape.head_dim), shape.dtype, device)
    size = (load.batch, shape.num_kv_heads, load.length, shape.head_dim)
    copies = [[_random(size, shape.dtype, device) for _ in range(2)] for _ in range(num_copies)]
    # torch aligns is_causal's diagonal with the first key, so is_causal is correct for whole prompts only.
    causal = load.queries > 1
    attend = partial(functional.scaled_dot_product_attention, is_causal=causal, enable_gqa=True)
    yield "SDPA", [partial(attend, q, k, v) for k, v in copies]
    if device.type != "cuda":
        return
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    with fresh_compiler():
        flex = torch.compile(flex_attention, dynamic=False)
        mask = None
        if causal:
            mask = create_block_mask(_is_visible, None, None, load.queries, load.length, device=str(device))
        yield "FlexAttention", [partial(flex, q, k, v, block_mask=mask, enable_gqa=True) for k, v in copies]


def _is_visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _random(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype.itemsize == 1:
        return torch.randn(size, dtype=torch.float16, device=device).to(dtype)
    return torch.randn(size, dtype=dtype, device=device)
