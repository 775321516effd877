"""Compares the stored tiles of quantized products with other tiles, for each class of row counts. Prints the fastest
three and the stored ones. Faster tiles should be stored instead.

For fp8, the part also measures `torch._scaled_mm` with exact and with fast sums. Where it is faster than the best
tiles, `scaled_mm.LEAST_ROWS` should be lower.

All candidates are compiled first, in parallel processes. Then they are measured one after the other.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.compile_ahead import META, processes
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.products import ROTATED_BYTES, bytes_of, floor, matrices, quantized
from benchmarks.gpu.tile_candidates import EIGHT_BIT, REPACKED
from services.worker.ops.triton import eight_bit, eight_bit_weights, four_bit, quantized_linear
from services.worker.ops.triton.dequantize import Scratch
from services.worker.ops.triton.linear import Linear, create_linear
from services.worker.ops.triton.quantize_rows import quantize_rows
from services.worker.ops.triton.tiles import Tiles, TileTable
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.weight import QuantizedWeight

# The table with the tiles, and the candidates, by the value of --quantization.
TABLES: dict[str, tuple[ModuleType, str, dict[int, tuple[Tiles, ...]]]] = {
    "fp8": (eight_bit, "QUANTIZED", EIGHT_BIT),
    "int8": (eight_bit, "QUANTIZED", EIGHT_BIT),
    "int8-weight-only": (eight_bit_weights, "HALF", REPACKED),
    "awq": (four_bit, "HALF", REPACKED),
    "gptq": (four_bit, "HALF", REPACKED),
}
MATRICES = ("gate and up", "down")
MANY_ROWS = 192  # two tiles of the last class
REPEATS = 7
FASTEST = 3
COMPILE_SECONDS = 35.0  # candidates that are not compiled by then are left out

# The matrix, the tiles, and whether one tile holds all rows: only then, a product may be split.
Kernel = tuple[str, Tiles, bool]


@dataclass(frozen=True, slots=True)
class Candidate:
    form: str  # value of --quantization
    index: int  # of the class in the table
    tiles: Tiles
    is_stored: bool

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Puts the candidate in the table. Products of all numbers of rows then use the kernel with these tiles."""
        module, name, _ = TABLES[self.form]
        classes = list(getattr(module, name).classes)
        classes[self.index] = self.tiles
        with (
            patch.object(module, name, TileTable(tuple(classes))),
            patch.object(quantized_linear, "serves", lambda *_: False),
        ):
            yield

    def __str__(self) -> str:
        tiles = self.tiles
        described = f"rows {tiles.rows}, outs {tiles.outs}, k {tiles.k}, warps {tiles.num_warps}"
        described += f", stages {tiles.num_stages}, programs {tiles.programs}"
        return described + (" (stored)" if self.is_stored else "")


@dataclass(frozen=True, slots=True)
class Case:
    """A product of one weight with one number of rows, and the candidates for it, the stored tiles first."""

    name: str
    matrix: str
    rows: int
    candidates: tuple[Candidate, ...]

    def kernel(self, candidate: Candidate) -> Kernel:
        return self.matrix, candidate.tiles, self.rows <= candidate.tiles.rows


def cases(bench: Bench) -> Iterator[Case]:
    form = str(bench.quantization)
    module, table_name, others = TABLES[form]
    classes = getattr(module, table_name).classes
    largest = [(index, tiles.rows) for index, tiles in enumerate(classes)]
    sizes = [(0, 1), *largest, (len(classes) - 1, MANY_ROWS)]
    for matrix in MATRICES:
        n, k = matrices(bench.model)[matrix]
        for index, rows in sizes:
            stored = classes[index]
            compared = (stored, *(tiles for tiles in others.get(stored.rows, ()) if tiles != stored))
            candidates = tuple(Candidate(form, index, tiles, tiles is stored) for tiles in compared)
            if bench.dry_run:
                rows, candidates = min(rows, stored.rows + 1), candidates[:2]
            yield Case(f"{matrix} {n} x {k}, {rows} rows", matrix, rows, candidates)


def measure(bench: Bench) -> Iterator[Figure]:
    if bench.quantization is None:
        raise SystemExit("tiles: set --quantization to the format to measure")
    weights = {name: _weight(bench, *matrices(bench.model)[name]) for name in MATRICES}
    all_cases = list(cases(bench))
    missing = set() if bench.dry_run else _compile(bench, all_cases, weights)
    for name, weight in weights.items():
        num_copies = 1 if bench.dry_run else 1 + ROTATED_BYTES // bytes_of(weight)
        copies = [copy.deepcopy(weight) for _ in range(num_copies)]
        scratch = Scratch(bench.device, bench.dtype)
        linears = [
            create_linear(one, None, bench.device, bench.dtype, batch_invariant=False, scratch=scratch)
            for one in copies
        ]
        for case in all_cases:
            if case.matrix == name:
                left = [candidate for candidate in case.candidates if case.kernel(candidate) not in missing]
                yield from _compare(bench, case, left, linears, weight)
                fp8 = [one for one in copies if isinstance(one, Fp8Weight)]
                if fp8 and not bench.dry_run:
                    yield from _library(bench, case, fp8)


def _weight(bench: Bench, n: int, k: int) -> QuantizedWeight:
    weight = quantized(bench, torch.randn(n, k, device=bench.device, dtype=bench.dtype) * 0.02)
    assert not isinstance(weight, Tensor)
    return weight


def _compile(bench: Bench, all_cases: Sequence[Case], weights: dict[str, QuantizedWeight]) -> set[Kernel]:
    """Compiles all candidates. Returns those that did not compile, or not in time."""
    start = time.monotonic()
    major, minor = torch.cuda.get_device_capability(bench.device)
    pool = processes(10 * major + minor, (__name__,))
    shapes = {name: weight.to(META) for name, weight in weights.items()}
    started: dict[Kernel, Future[None]] = {}
    for case in all_cases:
        for candidate in case.candidates:
            kernel = case.kernel(candidate)
            if kernel not in started:
                work = (candidate, shapes[case.matrix], case.rows, bench.dtype)
                started[kernel] = pool.submit(compile_candidate, *work)
    _, late = wait(started.values(), COMPILE_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    missing = set()
    for kernel, future in started.items():
        error = TimeoutError("not compiled in time") if future in late else future.exception()
        if error is not None:
            print(f"{kernel[0]}, {kernel[1]}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}")
            missing.add(kernel)
    print(f"({len(started) - len(missing)} kernels compiled in {time.monotonic() - start:.0f} s)", flush=True)
    return missing


def compile_candidate(
    candidate: Candidate, weight: QuantizedWeight, rows: int, dtype: torch.dtype, device: torch.device = META
) -> None:
    """Compiles the kernels of a product. Runs in a process in which launches only compile. weight: on `device`."""
    with candidate.in_use(), torch.no_grad():
        linear = create_linear(weight, None, device, dtype, batch_invariant=False)
        linear(torch.empty(rows, weight.shape[1], dtype=dtype, device=device))


def _compare(
    bench: Bench, case: Case, candidates: Sequence[Candidate], linears: Sequence[Linear], weight: QuantizedWeight
) -> Iterator[Figure]:
    """Measures the candidates. Yields the figures of the fastest, and that of the stored tiles."""
    x = torch.randn(case.rows, weight.shape[1], device=bench.device, dtype=bench.dtype)
    shortest = floor(bench, weight, case.rows) * 1e6
    found = []
    for candidate in candidates:
        try:
            with candidate.in_use():
                taken = bench.clock.in_graph([partial(linear, x) for linear in linears], REPEATS)
        except Exception as error:  # skip tiles that need too much shared memory
            print(f"{case.name}, {candidate}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        found.append((candidate, Figure(case.name, taken * 1e6, "us", shortest, str(candidate))))
    found.sort(key=lambda pair: pair[1].value or 0.0)
    for place, (candidate, figure) in enumerate(found):
        if place < FASTEST or candidate.is_stored:
            yield figure


def _library(bench: Bench, case: Case, weights: Sequence[Fp8Weight]) -> Iterator[Figure]:
    """Measures torch's product, including the quantization of x."""
    x = torch.randn(case.rows, weights[0].shape[1], device=bench.device, dtype=bench.dtype)

    def product(weight: Fp8Weight, fast: bool) -> Tensor:
        q, row_scales = quantize_rows(x, weight.values.dtype)
        result: Tensor = torch._scaled_mm(
            q, weight.values.t(), row_scales[:, None], weight.scales.view(1, -1), out_dtype=bench.dtype,
            use_fast_accum=fast,
        )  # fmt: skip
        return result

    for fast in (False, True):
        note = f"scaled_mm, {'fast' if fast else 'exact'} sums"
        try:
            taken = bench.clock.in_graph([partial(product, weight, fast) for weight in weights], REPEATS)
        except RuntimeError as error:  # such as types that this GPU does not support
            yield Figure(case.name, None, "us", note=f"{note}: {str(error).splitlines()[0][:100]}")
            continue
        yield Figure(case.name, taken * 1e6, "us", floor(bench, weights[0], case.rows) * 1e6, note)
