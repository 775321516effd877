"""Tunings of `ops/triton/skinny.py` to compare, and their compilation by many processes at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from services.worker.ops.triton.compile import build
from services.worker.ops.triton.skinny import MAX_GEMV_ROWS, Tuning, cut, tuning_of, variant_of
from services.worker.ops.triton.tiles import Tiles

# Outputs, k, warps, stages, and the least number of programs.
_GEMV = (
    (16, 256, 4, 1, 264), (16, 256, 4, 1, 792), (16, 512, 4, 1, 264), (16, 512, 8, 1, 528), (8, 1024, 8, 1, 132),
    (16, 256, 4, 4, 256), (16, 256, 4, 4, 528), (32, 256, 8, 3, 396),
)  # fmt: skip
_MANY = (
    (64, 128, 4, 4, 264), (64, 64, 4, 6, 264), (64, 128, 4, 5, 132), (64, 128, 4, 3, 396), (64, 256, 4, 3, 132),
    (128, 64, 4, 5, 132), (128, 128, 8, 3, 132), (32, 128, 2, 5, 396),
)  # fmt: skip
# Least number of columns with which Hopper's own matrix instruction (wgmma) is used. Below, `tl.dot` uses mma.sync.
_WGMMA_ROWS = 16
# For at most 8 rows: rows of the tile, then as above.
_FEW = (
    (8, 16, 256, 2, 4, 256), (8, 16, 256, 1, 4, 528), (8, 64, 128, 4, 6, 132), (_WGMMA_ROWS, 64, 64, 4, 6, 264),
    (_WGMMA_ROWS, 64, 128, 4, 5, 132), (8, 64, 128, 4, 4, 264), (8, 32, 128, 2, 5, 396),
    (_WGMMA_ROWS, 64, 128, 4, 4, 264), (_WGMMA_ROWS, 128, 64, 4, 5, 132),
)  # fmt: skip
_FEW_BESIDE_GEMV = 5  # that many of _FEW are compared with `gemv_kernel`


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to compile, without a bias. Unlike a kernel, it can be sent to another process."""

    tuning: Tuning
    dtype: str  # "bf16" or "fp16"
    n: int
    k: int
    capability: int


def candidates(rows: int, n: int, k: int) -> list[Tuning]:
    """Returns the stored tuning, then others that launch something else for a weight [n, k]."""
    found = [tuning_of(rows)]
    if rows <= MAX_GEMV_ROWS:
        padded = 1 << (rows - 1).bit_length()
        found += [_tuning(padded, *sizes, tensor_cores=False) for sizes in _GEMV]
        found += [_tuning(*sizes, tensor_cores=True) for sizes in _FEW[:_FEW_BESIDE_GEMV]]
    elif rows <= 8:
        found += [_tuning(*sizes, tensor_cores=True) for sizes in _FEW]
    else:
        padded = 1 << (rows - 1).bit_length()
        found += [_tuning(padded, *sizes, tensor_cores=True) for sizes in _MANY]
    launched: dict[object, Tuning] = {}
    for tuning in found:
        launched.setdefault((tuning.tiles, tuning.tensor_cores, cut(tuning, n, k)), tuning)
    return list(launched.values())


def describe(tuning: Tuning, n: int, k: int) -> str:
    tiles = tuning.tiles
    kind = "tensor cores" if tuning.tensor_cores else "gemv"
    return (
        f"{kind}, rows {tiles.rows}, outs {tiles.outs}, k {tiles.k}, warps {tiles.num_warps}, stages "
        f"{tiles.num_stages}, {tuning.programs} programs, {cut(tuning, n, k).splits} splits"
    )


def compile_all(jobs: Iterable[Job]) -> None:
    """Writes kernels to Triton's cache, where launches find them. Uses a process per core: compilation holds Python's
    lock for a large part of its time. A kernel that does not compile fails again, with its error, when it is
    launched."""
    missing: Sequence[Job] = tuple(dict.fromkeys(jobs))
    # A process that has started CUDA must not fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), len(missing)), context) as executor:
        list(executor.map(_compile, missing))


def _compile(job: Job) -> None:
    try:
        build(variant_of(job.tuning, job.dtype, job.n, job.k, has_bias=False), job.capability)
    except Exception:  # the launch will report it
        return


def _tuning(rows: int, outs: int, k: int, warps: int, stages: int, programs: int, *, tensor_cores: bool) -> Tuning:
    return Tuning(Tiles(rows, outs, k, warps, stages), programs, tensor_cores)
