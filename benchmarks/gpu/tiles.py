"""Compares the stored tiles of quantized products with other tiles, for few and for some rows. Faster tiles should be
stored instead."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from unittest.mock import patch

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.products import ROTATED_BYTES, bytes_of, matrices, quantized
from services.worker.ops.triton import eight_bit, eight_bit_weights, four_bit, tiles
from services.worker.ops.triton.dequantize import Scratch
from services.worker.ops.triton.linear import create_linear
from services.worker.ops.triton.tiles import Tiles
from services.worker.quantization.kinds.weight import Weight

# The table with the tiles, by the value of --quantization.
TABLES: dict[str, tuple[ModuleType, str]] = {
    "fp8": (eight_bit, "QUANTIZED"),
    "int8": (eight_bit, "QUANTIZED"),
    "int8-weight-only": (eight_bit_weights, "HALF"),
    "awq": (four_bit, "HALF"),
    "gptq": (four_bit, "HALF"),
}
MATRICES = ("gate and up", "down")
ROWS = {"few": (1, 16), "some": (32, 64)}
REPEATS = 10
_TILES = ((64, 4, 3), (64, 4, 5), (128, 4, 3), (128, 4, 4), (128, 8, 4), (256, 8, 3))  # outputs, warps, stages
_PROGRAMS = (132, 264, 396)


def candidates(stored: Tiles) -> Iterator[tuple[Tiles, int]]:
    """Yields tiles with the least number of programs into which a product is split. The stored ones come first."""
    yield stored, tiles.PROGRAMS
    for outs, num_warps, num_stages in _TILES:
        yield replace(stored, outs=outs, num_warps=num_warps, num_stages=num_stages), tiles.PROGRAMS
    for programs in _PROGRAMS:
        yield stored, programs


def measure(bench: Bench) -> Iterator[Figure]:
    if bench.quantization is None:
        raise SystemExit("tiles: set --quantization to the format to measure")
    for name in MATRICES:
        n, k = matrices(bench.model)[name]
        weight = quantized(bench, torch.randn(n, k, device=bench.device, dtype=bench.dtype) * 0.02)
        for size, all_rows in ROWS.items():
            for rows in all_rows[:1] if bench.dry_run else all_rows:
                yield from _compare(bench, f"{name} {n} x {k}, {rows} rows", weight, size, rows)


def _compare(bench: Bench, name: str, weight: Weight, size: str, rows: int) -> Iterator[Figure]:
    """Measures the candidates and yields their figures, fastest first."""
    module, table_name = TABLES[str(bench.quantization)]
    table = getattr(module, table_name)
    x = torch.randn(rows, weight.shape[1], device=bench.device, dtype=bench.dtype)
    num_copies = 1 if bench.dry_run else 1 + ROTATED_BYTES // bytes_of(weight)
    scratch = Scratch(bench.device, bench.dtype)  # shared, as in a model
    linears = [
        create_linear(copy.deepcopy(weight), None, bench.device, bench.dtype, batch_invariant=False, scratch=scratch)
        for _ in range(num_copies)
    ]
    floor = bytes_of(weight) / bench.ceilings.read
    found = []
    for index, (candidate, programs) in enumerate(candidates(getattr(table, size))):
        if bench.dry_run and index > 1:
            break
        described = (
            f"outs {candidate.outs}, warps {candidate.num_warps}, stages {candidate.num_stages}, {programs} programs"
        )
        described += " (stored)" if index == 0 else ""
        with (
            patch.object(module, table_name, replace(table, **{size: candidate})),
            patch.object(tiles, "PROGRAMS", programs),
        ):
            try:
                taken = bench.clock.in_graph([partial(linear, x) for linear in linears], REPEATS)
            except Exception as error:  # skip tiles that do not compile or need too much shared memory
                print(f"{name}, {described}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
                continue
        found.append(Figure(name, taken * 1e6, "us", floor * 1e6, described))
    yield from sorted(found, key=lambda figure: figure.value or 0.0)
