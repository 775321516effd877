"""The packed GEMM: right, and the same bits for a row whatever surrounds it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.reference import ReferenceOps

SHAPES = [(576, 1536), (1536, 576), (960, 576), (64, 64), (172, 64), (64, 172), (512, 8), (1, 1), (49, 33), (17, 1301)]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 131])
def test_equals_the_exact_product(
    cpu: CPUOps,
    exact: ReferenceOps,
    generator: torch.Generator,
    out_features: int,
    in_features: int,
    rows: int,
    half: bool,
) -> None:
    weight = torch.randn(out_features, in_features, generator=generator)
    weight = weight.bfloat16() if half else weight
    bias, x = torch.randn(out_features, generator=generator), torch.randn(rows, in_features, generator=generator)
    for b in (None, bias):
        expected = exact.linear(weight, b)(x.double())
        torch.testing.assert_close(
            cpu.linear(weight, b)(x).double(), expected, rtol=1e-5, atol=2e-6 * in_features**0.5 * 4
        )


@pytest.mark.parametrize(("out_features", "in_features"), [(100, 1301), (576, 576), (49, 33)])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_row_has_the_same_bits_alone_and_in_any_crowd(
    cpu: CPUOps, generator: torch.Generator, threads: int, out_features: int, in_features: int, half: bool
) -> None:
    weight = torch.randn(out_features, in_features, generator=generator)
    linear = cpu.linear(weight.bfloat16() if half else weight, torch.randn(out_features, generator=generator))
    x = torch.randn(300, in_features, generator=generator)
    together = linear(x)
    for rows in (*range(1, 20), 127, 128, 129, 257):
        start = (rows * 37) % (300 - rows)
        assert torch.equal(linear(x[start : start + rows]), together[start : start + rows])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40), out_features=st.integers(1, 130), in_features=st.integers(1, 90), seed=st.integers(0, 99)
)
def test_bits_do_not_depend_on_the_thread_count(
    cpu: CPUOps, rows: int, out_features: int, in_features: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    linear = cpu.linear(torch.randn(out_features * 8, in_features * 8, generator=generator))
    x = torch.randn(rows, in_features * 8, generator=generator)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(linear(x))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_weight_that_fits_bfloat16_takes_half_the_bytes_and_gives_the_same_bits(
    cpu: CPUOps, generator: torch.Generator
) -> None:
    weight = torch.randn(96, 576, generator=generator).bfloat16()
    wider = torch.cat((weight.float(), torch.randn(96, 576, generator=generator)))  # keeps the whole in float32
    x = torch.randn(5, 576, generator=generator)
    small, upcast, large = cpu.linear(weight), cpu.linear(weight.float()), cpu.linear(wider)
    assert small.num_bytes == upcast.num_bytes == 96 * 576 * 2
    assert large.num_bytes == 192 * 576 * 4
    assert torch.equal(small(x), large(x)[:, :96])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_features", [64, 33])
def test_embedding_reads_rows_back_out_of_the_panels(
    cpu: CPUOps, generator: torch.Generator, dtype: torch.dtype, in_features: int
) -> None:
    weight = torch.randn(5001, in_features, generator=generator).to(dtype)
    linear = cpu.linear(weight)
    ids = torch.randint(0, 5001, (700,), generator=generator)
    ids[0], ids[1] = 0, 5000
    assert torch.equal(cpu.embedding(ids, linear), weight[ids].float())
    assert cpu.embedding(ids[:0], linear).shape == (0, in_features)


def test_ids_outside_the_vocabulary_are_refused(cpu: CPUOps) -> None:
    linear = cpu.linear(torch.randn(10, 8))
    for bad in (-1, 10):
        with pytest.raises(IndexError, match="vocabulary of 10"):
            cpu.embedding(torch.tensor([3, bad]), linear)


def test_what_c_would_misread_is_refused(cpu: CPUOps) -> None:
    linear = cpu.linear(torch.randn(10, 8))
    for bad in (torch.randn(2, 9), torch.randn(8), torch.randn(2, 8).double(), torch.randn(8, 2).t()):
        with pytest.raises(ValueError, match="linear needs"):
            linear(bad)
    with pytest.raises(ValueError, match="bias"):
        cpu.linear(torch.randn(10, 8), torch.randn(9))


def test_no_rows_give_no_rows(cpu: CPUOps) -> None:
    assert cpu.linear(torch.randn(10, 8))(torch.empty(0, 8)).shape == (0, 10)
