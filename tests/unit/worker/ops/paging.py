"""Random batches for the tests of the operations: sequences in shuffled pages, poisoned wherever nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, KVPages, Ops

UNUSED = 1 << 28  # a page id that faults if anything follows it


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    dim: int


@dataclass(frozen=True)
class Sequence:
    """Inputs of one whole sequence, before rotation."""

    q: Tensor  # [length, query heads, dim]
    k: Tensor  # [length, kv heads, dim]
    v: Tensor  # [length, kv heads, dim]


def random_sequence(generator: torch.Generator, length: int, heads: Heads) -> Sequence:
    def draw(count: int) -> Tensor:
        return torch.randn(length, count, heads.dim, generator=generator)

    return Sequence(2 * draw(heads.query), draw(heads.kv), draw(heads.kv))


def rope_table(positions: int, dim: int) -> Tensor:
    angles = torch.outer(torch.arange(positions), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


class PagedRun:
    """Feeds sequences to an `Ops` chunk by chunk, as a worker does, and gathers the outputs of attention."""

    def __init__(
        self, ops: Ops, heads: Heads, lengths: list[int], block_size: int, *, window: int | None = None, seed: int = 0
    ) -> None:
        self.ops, self.heads, self.block_size, self.window = ops, heads, block_size, window
        blocks = [-(-length // block_size) for length in lengths]
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(sum(blocks) + 2, generator=generator).to(torch.int32)
        self.tables = torch.full((len(lengths), max(blocks) + 1), UNUSED, dtype=torch.int32)
        for row, count in enumerate(blocks):
            self.tables[row, :count] = ids[sum(blocks[:row]) : sum(blocks[:row]) + count]
        shape = (sum(blocks) + 2, heads.kv, block_size, heads.dim)
        keys = torch.full(shape, torch.nan, dtype=ops.dtype)
        self.pages = KVPages(keys, keys.clone())
        self.cos_sin = rope_table(max(lengths), heads.dim)
        self.done = [0] * len(lengths)
        self.outputs: list[list[Tensor]] = [[] for _ in lengths]

    def step(self, sequences: list[Sequence], scheduled: dict[int, int]) -> None:
        """One forward pass over the next `scheduled[row]` tokens of each row named, in that order."""
        rows = list(scheduled)
        parts = [slice(self.done[row], self.done[row] + scheduled[row]) for row in rows]
        due = [(sequences[row], part) for row, part in zip(rows, parts, strict=True)]
        fused = torch.cat([torch.cat((s.q[part], s.k[part], s.v[part]), dim=1) for s, part in due])
        fused = fused.to(self.ops.dtype)  # [num_tokens, all heads, dim], as one projection would give it
        q, k, v = torch.split(fused, [self.heads.query, self.heads.kv, self.heads.kv], dim=1)
        counts = torch.tensor([0, *scheduled.values()], dtype=torch.int32)
        batch = AttentionBatch(
            positions=torch.cat([torch.arange(p.start, p.stop) for p in parts]).to(torch.int32),
            query_starts=counts.cumsum(0).to(torch.int32),
            block_tables=self.tables[rows].contiguous(),
        )
        self.ops.rope_and_write_kv(q, k, v, self.cos_sin, batch, self.pages)
        if self.window is not None:  # pages that slid out of every query's window may be freed
            for index, row in enumerate(rows):
                batch.block_tables[index, : max(0, self.done[row] - self.window + 1) // self.block_size] = UNUSED
        out = self.ops.paged_attention(q, batch, self.pages, self.heads.dim**-0.5, self.window)
        for row, chunk in zip(rows, torch.split(out, list(scheduled.values())), strict=True):
            self.outputs[row].append(chunk)
            self.done[row] += len(chunk)

    def result(self, row: int) -> Tensor:
        """[length, query heads * dim]"""
        return torch.cat(self.outputs[row])


def run_alone(ops: Ops, heads: Heads, sequence: Sequence, block_size: int = 16, window: int | None = None) -> Tensor:
    """A sequence in one chunk with nothing beside it."""
    length = len(sequence.q)
    run = PagedRun(ops, heads, [length], block_size, window=window)
    run.step([sequence], {0: length})
    return run.result(0)
