"""Tests attention over paged keys and values: decodes, prompts, and steps with both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.smoke.oracle import DTYPES, draw, worst_error
from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, KVPages
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.attention.paged import PagedAttention

DEVICE = torch.device("cuda", 0)
FP8 = torch.float8_e4m3fn
BLOCK_SIZE = 16

# Rows of a step: (tokens computed before, tokens of this step).
Rows = tuple[tuple[int, int], ...]
STEPS: dict[str, Rows] = {
    "one decode": ((700, 1),),
    "decodes": tuple((37 * row, 1) for row in range(40)),
    "a prompt": ((0, 600),),
    "a chunk behind others": ((513, 200),),
    "decodes beside chunks": ((5, 1), (0, 130), (900, 1), (64, 17), (1500, 1)),
}
TINY_STEPS: dict[str, Rows] = {"decodes": ((0, 1), (20, 1)), "decodes beside chunks": ((5, 1), (0, 9), (17, 4))}


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    dim: int
    window: int | None = None
    soft_cap: float | None = None
    latent: int | None = None  # elements of a key that are its value, too

    def __str__(self) -> str:
        text = f"{self.query} heads of {self.dim} on {self.kv}"
        text += "" if self.window is None else f", window {self.window}"
        text += "" if self.latent is None else f", latent {self.latent}"
        return text + ("" if self.soft_cap is None else f", soft cap {self.soft_cap:g}")


# Heads of Llama-3.1-8B, TinyLlama, Qwen 32B and Gemma, heads that are not grouped, the latent caches of DeepSeek-V3 and
# DeepSeek-V2-Lite, and Gemma 4's large heads.
HEADS = (
    Heads(32, 8, 128), Heads(32, 4, 64), Heads(40, 8, 128), Heads(16, 8, 256, 512, 50.0), Heads(8, 8, 80),
    Heads(32, 8, 128, 256), Heads(128, 1, 576, latent=512), Heads(16, 1, 576, latent=512), Heads(16, 2, 512),
)  # fmt: skip
TINY_HEADS = (Heads(2, 1, 16), Heads(2, 2, 16, 8, 30.0), Heads(4, 1, 24, latent=16))
MAX_FP8_DIM = 256
# The limits are those of the engine in `lease`, so that both share their compiled kernels.
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 128, 8192


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    found = {}
    for name in ("fp32",) if setting.dry_run else DTYPES:
        for pages in ("same", "fp8"):
            for invariant in (False, True):
                group = f"attention {name}" + (", fp8 pages" if pages == "fp8" else "")
                group += ", batch-invariant" if invariant else ""
                found[group] = partial(_of_type, setting, name, pages == "fp8", invariant)
    return found


def _of_type(setting: Setting, name: str, fp8_pages: bool, batch_invariant: bool) -> Iterator[Case]:
    dtype = DTYPES[name]
    for heads in TINY_HEADS if setting.dry_run else HEADS:
        if fp8_pages and (heads.latent is not None or heads.dim > MAX_FP8_DIM):
            continue
        shape = AttentionShape(
            heads.query, heads.kv, heads.dim, heads.latent or heads.dim, BLOCK_SIZE, dtype,
            FP8 if fp8_pages else dtype, heads.latent is not None,
        )  # fmt: skip
        for step, rows in (TINY_STEPS if setting.dry_run else STEPS).items():
            yield Case(f"{step}, {heads}", partial(_attend, shape, heads, rows, batch_invariant))


def _attend(shape: AttentionShape, heads: Heads, rows: Rows, batch_invariant: bool) -> float:
    attention = PagedAttention([shape], DEVICE, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, batch_invariant=batch_invariant)
    longest = max(computed + scheduled for computed, scheduled in rows)
    blocks = -(-longest // BLOCK_SIZE)
    tables = torch.randperm(len(rows) * blocks).int().view(len(rows), blocks).to(DEVICE)
    size = (len(rows) * blocks, heads.kv, BLOCK_SIZE, heads.dim)
    scales = (0.5, 0.25) if shape.kv_dtype is FP8 else (1.0, 1.0)  # different, to detect a swap
    keys, values = (draw(*size, dtype=torch.float32, device=DEVICE).to(shape.kv_dtype) for _ in range(2))
    if shape.is_latent:
        values = keys[..., : shape.value_dim]
    pages = KVPages(keys, values, *scales, is_latent=shape.is_latent)
    starts = np.cumsum([0, *(scheduled for _, scheduled in rows)], dtype=np.int32)
    positions = np.concatenate([np.arange(at, at + count, dtype=np.int32) for at, count in rows])
    fused = draw(len(positions), heads.query + 2 * heads.kv, heads.dim, dtype=shape.dtype, device=DEVICE)
    q = fused[:, : heads.query]
    batch = AttentionBatch(
        torch.from_numpy(positions).to(DEVICE), torch.from_numpy(starts).to(DEVICE), tables,
        attention.plan(starts, positions).to(DEVICE),
    )  # fmt: skip
    form = AttentionForm(heads.dim**-0.5, sliding_window=heads.window, soft_cap=heads.soft_cap)
    got = attention(q, batch, pages, form)
    exact_pages = KVPages(keys.float().double(), values.float().double(), *scales)
    exact = ReferenceOps(DEVICE, torch.float64)
    expected = exact.paged_attention(q.double(), batch, exact_pages, form)
    return worst_error(got, expected)
