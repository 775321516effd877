"""Random steps for the tests of attention: sequences in shuffled pages, poisoned wherever nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, AttentionWork, KVPages
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.attention.paged import PagedAttention
from services.worker.ops.triton.attention.tuning import TileConfig, Tuning

MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 512
FP8 = torch.float8_e4m3fn
FREED = 1 << 28  # a page id that faults if anything follows it
UNOWNED = 3  # tokens after those of the last row, as in a recorded step that is not full

# Small, so that short sequences cross every border; three programs walk the items.
SMALL = Tuning(TileConfig(16, 16, 4, 2), 3, TileConfig(32, 16, 4, 2), max_items=64, tiles_per_part=2)


@dataclass(frozen=True)
class Model:
    group: int = 2  # query heads per KV head
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    window: int | None = None
    soft_cap: float | None = None
    value_dim: int = 0  # 0: `head_dim`
    chunk: int | None = None
    has_slopes: bool = False
    has_sinks: bool = False
    is_latent: bool = False

    @property
    def num_heads(self) -> int:
        return self.group * self.num_kv_heads

    @property
    def of_values(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def form(self) -> AttentionForm:
        of_heads = torch.linspace(-2.0, 3.0, self.num_heads)
        return AttentionForm(
            self.head_dim**-0.5,
            self.window,
            self.chunk,
            self.soft_cap,
            of_heads.abs() / 16 if self.has_slopes else None,
            of_heads if self.has_sinks else None,
        )

    def form_on(self, device: torch.device) -> AttentionForm:
        form = self.form
        slopes, sinks = (None if x is None else x.to(device) for x in (form.slopes, form.sinks))
        return replace(form, slopes=slopes, sinks=sinks)

    @property
    def shape(self) -> AttentionShape:
        heads = (self.num_heads, self.num_kv_heads, self.head_dim, self.of_values)
        return AttentionShape(*heads, self.block_size, self.dtype, self.kv_dtype, self.is_latent)

    def attention(
        self, device: torch.device, config: Tuning | None = SMALL, *, batch_invariant: bool = False
    ) -> PagedAttention:
        return PagedAttention(
            [self.shape], device, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, batch_invariant=batch_invariant, config=config
        )


@dataclass(frozen=True)
class Text:
    """Queries, keys and values of one whole sequence, as they are computed with."""

    q: Tensor  # [length, num_heads, head_dim]
    k: Tensor  # [length, num_kv_heads, head_dim]
    v: Tensor  # [length, num_kv_heads, value_dim]


def random_text(model: Model, length: int, generator: torch.Generator) -> Text:
    def draw(heads: int, dim: int) -> Tensor:
        return torch.randn(length, heads, dim, generator=generator)

    q, k = 2 * draw(model.num_heads, model.head_dim), draw(model.num_kv_heads, model.head_dim)
    return Text(q, k, k[..., : model.of_values] if model.is_latent else draw(model.num_kv_heads, model.of_values))


@dataclass(frozen=True)
class Row:
    text: Text
    computed: int  # tokens before
    scheduled: int  # queries in this step

    @property
    def end(self) -> int:
        return self.computed + self.scheduled


@dataclass(frozen=True)
class Step:
    """Inputs of one call, on the device."""

    model: Model
    fused: Tensor  # [num_tokens + UNOWNED, num_heads + 2 * num_kv_heads, head_dim], what q is a part of
    query_starts: NDArray[np.int32]
    positions: NDArray[np.int32]
    block_tables: Tensor
    pages: KVPages

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    def run(self, attention: PagedAttention, work: AttentionWork | None = None) -> Tensor:
        """[num_tokens + UNOWNED, num_heads * value_dim]"""
        device = self.fused.device
        if work is None:
            work = attention.plan(self.query_starts, self.positions).to(device)
        return self.attend(attention, self.batch(device, work))

    def attend(self, attention: PagedAttention, batch: AttentionBatch) -> Tensor:
        """`run` on a batch that is on the device. Copies nothing from the host, so that a CUDA graph can record it if
        the model has neither slopes nor sinks."""
        q = self.fused[:, : self.model.num_heads]
        return attention(q, batch, self.pages, self.model.form_on(self.fused.device))

    def expected(self) -> Tensor:
        """In float64, of the owned tokens."""
        host = torch.device("cpu")
        pages = replace(self.pages, keys=self.pages.keys.cpu(), values=self.pages.values.cpu())
        q = self.fused[: self.num_tokens, : self.model.num_heads].cpu().double()
        exact = ReferenceOps(host, torch.float64)
        return exact.paged_attention(q, self.batch(host), pages, self.model.form)

    def inputs(self) -> list[Tensor]:
        """Bytes of all that is read."""
        tensors = (self.fused, *self.pages.tensors, self.block_tables)
        return [tensor.view(torch.uint8).clone() for tensor in tensors]

    def batch(self, device: torch.device, work: AttentionWork | None = None) -> AttentionBatch:
        positions, query_starts = torch.from_numpy(self.positions), torch.from_numpy(self.query_starts)
        return AttentionBatch(positions.to(device), query_starts.to(device), self.block_tables.to(device), work)


def lay_out(model: Model, rows: Sequence[Row], device: torch.device, seed: int = 0) -> Step:
    """Pages hold keys and values up to each row's last token, in fp8 with scales of their own. NaN is in all other
    slots, in the tokens that nobody owns and in the rest of the fused projection; entries of the block tables past a
    sequence's end, and of pages that slid out of the window of the row's first query, are `FREED`.
    """
    generator = torch.Generator().manual_seed(seed)
    size = model.block_size
    counts = [-(-row.end // size) for row in rows]
    ids = torch.randperm(sum(counts) + 2, generator=generator).to(torch.int32)
    tables = torch.full((len(rows), max(counts) + 1), FREED, dtype=torch.int32)
    scales = (0.5, 0.25) if model.kv_dtype is FP8 else (1.0, 1.0)
    keys = torch.full((sum(counts) + 2, model.num_kv_heads, size, model.head_dim), torch.nan).to(model.kv_dtype)
    values = keys[..., : model.of_values]
    if not model.is_latent:
        values = torch.full((*keys.shape[:3], model.of_values), torch.nan).to(model.kv_dtype)
    for index, row in enumerate(rows):
        tables[index, : counts[index]], ids = ids[: counts[index]], ids[counts[index] :]
        at = torch.arange(row.end)
        where = tables[index, at // size].long()
        keys[where, :, at % size] = (row.text.k[: row.end] / scales[0]).to(model.kv_dtype)
        values[where, :, at % size] = (row.text.v[: row.end] / scales[1]).to(model.kv_dtype)
        if model.chunk is not None:
            tables[index, : row.computed // model.chunk * model.chunk // size] = FREED
        if model.window is not None:
            tables[index, : max(0, row.computed - model.window + 1) // size] = FREED
    keys = keys.to(device)
    values = keys[..., : model.of_values] if model.is_latent else values.to(device)
    num_tokens = sum(row.scheduled for row in rows)
    fused = torch.full((num_tokens + UNOWNED, model.num_heads + 2 * model.num_kv_heads, model.head_dim), torch.nan)
    fused[:num_tokens, : model.num_heads] = torch.cat([row.text.q[row.computed : row.end] for row in rows])
    return Step(
        model,
        fused.to(device, model.dtype),
        np.cumsum([0] + [row.scheduled for row in rows], dtype=np.int32),
        np.concatenate([np.arange(row.computed, row.end, dtype=np.int32) for row in rows]),
        tables.to(device),
        KVPages(keys, values, *scales, is_latent=model.is_latent),
    )


def random_rows(model: Model, sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[Row]:
    """Rows of (computed, scheduled) tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Row(random_text(model, computed + scheduled, generator), computed, scheduled) for computed, scheduled in sizes
    ]


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Relative and absolute, of outputs about 1: results and weights are rounded to `dtype`, which the interpreter does
    by cutting off.
    """
    return (1e-5, 1e-5) if dtype is torch.float32 else (2 * torch.finfo(dtype).eps, torch.finfo(dtype).eps)
