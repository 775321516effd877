"""Compares products of few rows: cuBLAS, the stored tunings of `ops/triton/skinny.py`, and other tunings.

For each matrix of a layer and each number of rows, prints cuBLAS, the fastest three tunings, and the stored one. If one
is faster than cuBLAS, it belongs in `skinny.FASTER`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.products import ROTATED_BYTES, matrices
from benchmarks.gpu.skinny_candidates import Job, candidates, compile_all, describe
from services.worker.ops.triton.skinny import Tuning, skinny
from services.worker.ops.triton.split_k import scratch

ROWS = (1, 2, 4, 8, 16, 32, 64)
DRY_ROWS = (1, 2, 5)
REPEATS = 5
FASTEST = 3  # number of tunings to print


def measure(bench: Bench) -> Iterator[Figure]:
    _ = bench.ceilings  # measured before the weights take memory
    dtype = torch.float16 if bench.dry_run else bench.dtype
    shapes, all_rows = matrices(bench.model), DRY_ROWS if bench.dry_run else ROWS
    if not bench.dry_run:
        major, minor = torch.cuda.get_device_capability(bench.device)
        name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
        compile_all(
            Job(tuning, name, n, k, 10 * major + minor)
            for n, k in shapes.values()
            for rows in all_rows
            for tuning in candidates(rows, n, k)
        )
    scratch(bench.device)
    for name, (n, k) in shapes.items():
        weight = torch.randn(n, k, device=bench.device, dtype=dtype) / k**0.5
        num_copies = 1 if bench.dry_run else 1 + ROTATED_BYTES // weight.nbytes
        weights = [weight, *(weight.clone() for _ in range(num_copies - 1))]
        for rows in all_rows:
            yield from _compare(bench, f"{name} {n} x {k}, {rows} rows", weights, rows)


def _compare(bench: Bench, name: str, weights: Sequence[Tensor], rows: int) -> Iterator[Figure]:
    """Measures cuBLAS and the candidates."""
    n, k = weights[0].shape
    x = torch.randn(rows, k, device=bench.device, dtype=weights[0].dtype)
    floor = (weights[0].nbytes + rows * (n + k) * x.element_size()) / bench.ceilings.read * 1e6
    taken = bench.clock.in_graph([partial(functional.linear, x, weight) for weight in weights], REPEATS)
    yield Figure(name, taken * 1e6, "us", floor, "cuBLAS")
    expected = functional.linear(x, weights[0])
    found: list[tuple[float, bool, str]] = []
    for index, tuning in enumerate(candidates(rows, n, k)[: 2 if bench.dry_run else None]):
        described = describe(tuning, n, k) + (" (stored)" if index == 0 else "")
        try:
            torch.testing.assert_close(skinny(x, weights[0], None, tuning), expected, rtol=2e-2, atol=2e-2)
            taken = bench.clock.in_graph([partial(_multiply, x, weight, tuning) for weight in weights], REPEATS)
        except Exception as error:  # skip tunings that do not compile, need too much shared memory, or are wrong
            print(f"{name}, {described}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        found.append((taken * 1e6, index == 0, described))
    for place, (microseconds, is_stored, described) in enumerate(sorted(found)):
        if place < FASTEST or is_stored:
            yield Figure(name, microseconds, "us", floor, described)


def _multiply(x: Tensor, weight: Tensor, tuning: Tuning) -> Tensor:
    return skinny(x, weight, None, tuning)
