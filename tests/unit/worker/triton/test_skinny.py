"""Products of few rows: against float64, with poisoned outputs and scratch memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.worker.ops.triton import skinny as module
from services.worker.ops.triton.ops import TritonOps
from services.worker.ops.triton.skinny import (
    FASTER,
    TUNINGS,
    Faster,
    Tuning,
    chosen,
    cut,
    may_serve,
    skinny,
    tuning_of,
)
from services.worker.ops.triton.split_k import scratch
from services.worker.ops.triton.tiles import MAX_PARTIALS, MAX_SPLIT_TILES, Tiles
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.random_tensors import assert_guards_intact, draw, guarded

ROWS = [1, 2, 5, 16, 17, 64]
GEMV_OF_FOUR = Tuning(Tiles(rows=4, outs=16, k=256, num_warps=4, num_stages=1), programs=264, tensor_cores=False)


@pytest.fixture(autouse=True)
def poisoned(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outputs and partial sums are full of NaN, and nothing may change beyond an output's ends. Counters are zero
    before a product and after it."""
    empty, wholes = torch.empty, []

    def poison(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        inside, whole = guarded(*shape, dtype=dtype, device=device)
        wholes.append(whole)
        return inside

    partials, counters = scratch(empty(0, device=device).device)
    partials.fill_(torch.nan)
    monkeypatch.setattr(torch, "empty", poison)
    yield
    assert not counters.any()
    for whole in wholes:
        assert_guards_intact(whole)


def halves(*shape: int, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.float16, device=device)


def check(x: Tensor, weight: Tensor, bias: Tensor | None, tuning: Tuning | None = None) -> None:
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    got = skinny(x, weight, bias, tuning)
    assert got.dtype is x.dtype
    torch.testing.assert_close(got.double(), expected, rtol=6e-4, atol=1e-4)


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("n", "k", "bias"), [(1, 1, True), (64, 2048, False), (70, 2600, True), (130, 264, False)])
def test_products(device: torch.device, m: int, n: int, k: int, bias: bool) -> None:
    """Outputs and inputs that do and do not divide into tiles, split and not."""
    weight = draw(n, k, dtype=torch.float16, device=device, seed=1) / k**0.5
    added = draw(n, dtype=torch.float16, device=device, seed=2) if bias else None
    check(draw(m, k, dtype=torch.float16, device=device), weight, added)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [2048, 2600])
def test_four_rows_without_tensor_cores(device: torch.device, m: int, k: int) -> None:
    weight = draw(40, k, dtype=torch.float16, device=device, seed=1) / k**0.5
    check(draw(m, k, dtype=torch.float16, device=device), weight, None, GEMV_OF_FOUR)


@pytest.mark.skipif(not HAS_GPU, reason="takes the interpreter hours, and has no programs at once there")
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("n", "k"), [(4096, 14336), (28672, 4096), (6144, 4096)])
def test_products_of_a_model(device: torch.device, m: int, n: int, k: int) -> None:
    """In bfloat16, with hundreds of programs at once."""
    weight = draw(n, k, dtype=torch.bfloat16, device=device, seed=1) / k**0.5
    x = draw(m, k, dtype=torch.bfloat16, device=device)
    got = skinny(x, weight, None)
    torch.testing.assert_close(got.double(), x.double() @ weight.double().t(), rtol=5e-3, atol=1e-3)
    for _ in range(50):
        assert torch.equal(skinny(x, weight, None), got)


@pytest.mark.parametrize("m", ROWS)
def test_a_repeated_product_has_the_same_bits(device: torch.device, m: int) -> None:
    """Other products in between, of other shapes, leave the scratch memory as it was."""
    weight = draw(70, 2600, dtype=torch.float16, device=device, seed=1)
    other = draw(200, 1100, dtype=torch.float16, device=device, seed=2)
    x = draw(m, 2600, dtype=torch.float16, device=device)
    assert cut(tuning_of(m), 70, 2600).splits > 1
    first = skinny(x, weight, None)
    skinny(x[:, :1100], other, None)
    assert torch.equal(skinny(x, weight, None), first)


@pytest.mark.parametrize("m", [1, 3, 16])
def test_what_is_not_a_number_stays_in_its_row(device: torch.device, m: int) -> None:
    """Neither columns past the end of a row nor rows past the last are read."""
    weight = draw(20, 1100, dtype=torch.float16, device=device, seed=1)
    x = torch.full((m + 2, 1200), torch.nan, dtype=torch.float16, device=device)
    x[:m, 8:1108] = draw(m, 1100, dtype=torch.float16, device=device)
    clean = skinny(x[:m, 8:1108], weight, None)
    assert not clean.isnan().any()
    x[m - 1] = torch.nan
    got = skinny(x[:m, 8:1108], weight, None)
    assert got[m - 1].isnan().all()
    assert torch.equal(got[: m - 1], clean[: m - 1])


def test_no_rows(device: torch.device) -> None:
    assert skinny(halves(0, 64, device=device), halves(8, 64, device=device), None).shape == (0, 8)


def test_arguments_that_would_be_misread(device: torch.device) -> None:
    x, weight, bias = halves(2, 64, device=device), halves(8, 64, device=device), halves(8, device=device)
    for wrong in (x[:, :32], x[0], halves(64, 2, device=device).t(), x.float()):
        with pytest.raises(ValueError, match="x must be"):
            skinny(wrong, weight, None)
    with pytest.raises(ValueError, match="has 65 rows"):
        skinny(halves(65, 64, device=device), weight, None)
    with pytest.raises(ValueError, match="2 rows, and may have 1"):
        skinny(x, weight, None, TUNINGS[0])
    for wrong in (halves(16, 64, device=device)[::2], weight.float()):
        with pytest.raises(ValueError, match="the weight"):
            skinny(x, wrong, None)
    for wrong in (bias[:4], halves(16, device=device)[::2], bias.float()):
        with pytest.raises(ValueError, match="the bias"):
            skinny(x, weight, wrong)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n", "k"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128_256, 4096)])
def test_programs_fill_the_device_and_their_sums_fit(rows: int, n: int, k: int) -> None:
    tuning = tuning_of(rows)
    assert rows <= tuning.tiles.rows
    plan = cut(tuning, n, k)
    steps = -(-k // tuning.tiles.k)
    assert plan.tiles * plan.splits >= 192
    assert (plan.splits - 1) * plan.steps < steps <= plan.splits * plan.steps
    if plan.splits > 1:
        assert plan.tiles <= MAX_SPLIT_TILES
        assert plan.tiles * plan.splits * tuning.tiles.outs * tuning.tiles.rows <= MAX_PARTIALS


def test_products_that_would_need_more_scratch_memory_are_split_less() -> None:
    tuning = tuning_of(64)
    greedy = replace(tuning, programs=100_000)
    plan = cut(greedy, 64 * 100, 1 << 20)
    assert plan.splits == MAX_PARTIALS // (100 * 64 * 64)
    assert cut(greedy, 64 * (MAX_SPLIT_TILES + 1), 1 << 20).splits == 1


def test_the_scratch_memory_stays_where_it_is(device: torch.device) -> None:
    place = torch.zeros(0, device=device).device
    before = [tensor.data_ptr() for tensor in scratch(place)]
    skinny(torch.ones(1, 2048, dtype=torch.float16, device=device),
           torch.ones(16, 2048, dtype=torch.float16, device=device), None)  # fmt: skip
    assert [tensor.data_ptr() for tensor in scratch(place)] == before


def test_a_layer_multiplies_with_what_is_faster(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Tuning | None] = []

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None, tuning: Tuning | None = None) -> Tensor:
        used.append(tuning)
        return skinny(x, weight, bias, tuning)

    monkeypatch.setattr("services.worker.ops.triton.linear.skinny", noted)
    monkeypatch.setattr("services.worker.ops.triton.linear.may_serve", lambda weight: weight.dtype is torch.float16)
    weight = draw(64, 96, dtype=torch.float16, device=device, seed=1) / 10
    linear = TritonOps(device, torch.float16).linear(weight)
    x = draw(5, 96, dtype=torch.float16, device=device)
    expected = linear(x)
    assert not used  # a smaller weight than those that were measured
    entry = Faster(outs=range(64, 65), inputs=range(64, 128), rows=range(3, 9), tuning=TUNINGS[2])
    monkeypatch.setattr(module, "FASTER", (entry,))
    torch.testing.assert_close(linear(x), expected)
    assert used == [TUNINGS[2]]
    for other in (x[:2], x.unsqueeze(0), draw(96, 5, dtype=torch.float16, device=device).t()):
        linear(other)
    TritonOps(device, torch.float16, batch_invariant=True).linear(weight)(x)
    TritonOps(device, torch.float32).linear(weight)(x.float())
    assert used == [TUNINGS[2]]
    assert chosen(3, 64, 96) is TUNINGS[2]
    assert chosen(3, 65, 96) is chosen(3, 64, 128) is chosen(9, 64, 96) is None


def test_what_is_faster_is_a_class_of_large_weights_and_few_rows(device: torch.device) -> None:
    for entry in FASTER:
        assert entry.rows.stop - 1 <= entry.tuning.tiles.rows
        assert chosen(entry.rows.start, entry.outs.start, entry.inputs.start) is not None
    assert chosen(1, 6144, 4096) is TUNINGS[0]
    assert chosen(17, 4096, 4096) is chosen(8, 6144, 4096) is chosen(1, 128_256, 4096) is None
    large = torch.zeros(4096, 4096, dtype=torch.float16, device=device)
    is_measured = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
    assert may_serve(large) is is_measured
    assert not may_serve(large.float())
    assert not may_serve(large[:64])
