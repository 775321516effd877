"""Random batches for the tests of the operations: sequences in shuffled pages, poisoned wherever nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, KVPages, Ops, Rotation

UNUSED = 1 << 28  # a page id that faults if anything follows it


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    dim: int
    value_dim: int = 0  # 0: `dim`
    is_latent: bool = False  # the first `value_dim` elements of a key are its value

    @property
    def of_values(self) -> int:
        return self.value_dim or self.dim


@dataclass(frozen=True)
class Sequence:
    """Inputs of one whole sequence, before rotation."""

    q: Tensor  # [length, query heads, dim]
    k: Tensor  # [length, kv heads, dim]
    v: Tensor  # [length, kv heads, value dim]


def random_sequence(generator: torch.Generator, length: int, heads: Heads) -> Sequence:
    def draw(count: int, dim: int) -> Tensor:
        return torch.randn(length, count, dim, generator=generator)

    return Sequence(2 * draw(heads.query, heads.dim), draw(heads.kv, heads.dim), draw(heads.kv, heads.of_values))


def rope_table(positions: int, dim: int) -> Tensor:
    angles = torch.outer(torch.arange(positions), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


class PagedRun:
    """Feeds sequences to an `Ops` chunk by chunk, as a worker does, and gathers the outputs of attention."""

    def __init__(
        self, ops: Ops, heads: Heads, lengths: list[int], block_size: int, form: AttentionForm | None = None,
        *, window: int | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.ops, self.heads, self.block_size = ops, heads, block_size
        self.form = form or AttentionForm(heads.dim**-0.5, sliding_window=window)
        blocks = [-(-length // block_size) for length in lengths]
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(sum(blocks) + 2, generator=generator).to(torch.int32)
        self.tables = torch.full((len(lengths), max(blocks) + 1), UNUSED, dtype=torch.int32)
        for row, count in enumerate(blocks):
            self.tables[row, :count] = ids[sum(blocks[:row]) : sum(blocks[:row]) + count]
        shape = (sum(blocks) + 2, heads.kv, block_size)
        keys = torch.full((*shape, heads.dim), torch.nan, dtype=ops.dtype)
        values = torch.full((*shape, heads.of_values), torch.nan, dtype=ops.dtype)
        if heads.is_latent:
            values = keys[..., : heads.value_dim]
        self.pages = KVPages(keys, values, is_latent=heads.is_latent)
        self.rotation = Rotation(rope_table(max(lengths), heads.dim))
        self.done = [0] * len(lengths)
        self.outputs: list[list[Tensor]] = [[] for _ in lengths]

    def step(self, sequences: list[Sequence], scheduled: dict[int, int]) -> None:
        """One forward pass over the next `scheduled[row]` tokens of each row named, in that order."""
        rows = list(scheduled)
        parts = [slice(self.done[row], self.done[row] + scheduled[row]) for row in rows]
        due = [(sequences[row], part) for row, part in zip(rows, parts, strict=True)]
        fused = torch.cat([torch.cat([x[part].flatten(1) for x in (s.q, s.k, s.v)], dim=1) for s, part in due])
        fused = fused.to(self.ops.dtype)  # [num_tokens, features], as one projection would give it
        heads = self.heads
        counts_of_heads, dims = (heads.query, heads.kv, heads.kv), (heads.dim, heads.dim, heads.of_values)
        widths = [count * dim for count, dim in zip(counts_of_heads, dims, strict=True)]
        q, k, v = (x.view(len(x), -1, dim) for x, dim in zip(torch.split(fused, widths, dim=1), dims, strict=True))
        counts = torch.tensor([0, *scheduled.values()], dtype=torch.int32)
        batch = AttentionBatch(
            positions=torch.cat([torch.arange(p.start, p.stop) for p in parts]).to(torch.int32),
            query_starts=counts.cumsum(0).to(torch.int32),
            block_tables=self.tables[rows].contiguous(),
        )
        if heads.is_latent:
            self.ops.rope(q, self.rotation, batch)
            self.ops.rope(k, self.rotation, batch)
            self.ops.write_kv(k, None, batch, self.pages)
        else:
            self.ops.rope_and_write_kv(q, k, v, self.rotation, batch, self.pages)
        for index, row in enumerate(rows):  # pages that no later query sees may be freed
            batch.block_tables[index, : self._first_seen(self.done[row]) // self.block_size] = UNUSED
        out = self.ops.paged_attention(q, batch, self.pages, self.form)
        for row, chunk in zip(rows, torch.split(out, list(scheduled.values())), strict=True):
            self.outputs[row].append(chunk)
            self.done[row] += len(chunk)

    def _first_seen(self, position: int) -> int:
        if self.form.chunk is not None:
            return position // self.form.chunk * self.form.chunk
        return 0 if self.form.sliding_window is None else max(0, position - self.form.sliding_window + 1)

    def result(self, row: int) -> Tensor:
        """[length, query heads * value dim]"""
        return torch.cat(self.outputs[row])


def run_alone(
    ops: Ops, heads: Heads, sequence: Sequence, block_size: int = 16, window: int | None = None,
    form: AttentionForm | None = None,
) -> Tensor:  # fmt: skip
    """A sequence in one chunk with nothing beside it."""
    length = len(sequence.q)
    run = PagedRun(ops, heads, [length], block_size, form, window=window)
    run.step([sequence], {0: length})
    return run.result(0)


def assert_close(got: Tensor, expected: Tensor, *, rtol: float, atol: float, told: str) -> None:
    """`told`: what is compared, for the message of a failure."""
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, msg=lambda message: f"{told}: {message}")
