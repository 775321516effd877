"""Tunings that the benchmark compares for products of few rows."""

from __future__ import annotations

import pytest

from benchmarks.gpu.products import ROTATED_BYTES
from benchmarks.gpu.skinny import ROWS
from benchmarks.gpu.skinny_candidates import Job, candidates, describe
from services.worker.ops.triton.skinny import MAX_GEMV_ROWS, cut, tuning_of

MATRICES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))


@pytest.mark.parametrize(("n", "k"), MATRICES)
@pytest.mark.parametrize("rows", ROWS)
def test_the_stored_tuning_comes_first_and_each_launches_something_else(rows: int, n: int, k: int) -> None:
    found = candidates(rows, n, k)
    assert found[0] == tuning_of(rows)
    assert len({(tuning.tiles, tuning.tensor_cores, cut(tuning, n, k)) for tuning in found}) == len(found)
    assert len({describe(tuning, n, k) for tuning in found}) == len(found)
    assert 5 <= len(found) <= 14
    for tuning in found:
        assert rows <= tuning.tiles.rows
        assert tuning.tensor_cores or tuning.tiles.rows <= MAX_GEMV_ROWS
    assert n * k * 2 < ROTATED_BYTES


def test_few_enough_kernels_to_compile_in_a_minute() -> None:
    jobs = {Job(tuning, "bf16", n, k, 90) for n, k in MATRICES for rows in ROWS for tuning in candidates(rows, n, k)}
    assert len(jobs) < 250
