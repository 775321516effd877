"""Min-p, top-k and top-p against the host's stages, on rows made to be awkward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.ops.triton.sampling.columns import TILE
from services.worker.ops.triton.sampling.cuts import CAPACITY
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence
from services.worker.sampling.truncation import MinP, Temperature, TopK, TopP
from tests.unit.worker.triton.sampling_bench import Bench

INF = float("inf")


def kept_by_kernels(bench: Bench, logits: Tensor) -> Tensor:
    """bool [n, vocab]: what min-p, top-k and top-p leave."""
    bench.pipeline.shape(logits, bench.rows, bench.state, None)
    cut = bench.pipeline.find_cuts(logits, bench.rows, bench.state)[: len(logits)].cpu()
    x = scaled(logits.cpu().float(), bench.params)
    kept = (x.abs().view(torch.int32) <= cut[:, None]) & x.isfinite()
    for row, params in enumerate(bench.params):
        if params.top_k == 0 and params.top_p == 1.0:  # nobody looked for a cut
            kept[row] = x[row] >= (np.log(params.min_p) if params.min_p > 0 else -np.inf)
    return kept & x.isfinite()


def scaled(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    temperature = torch.tensor([p.temperature for p in params])
    return (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]


def kept_by_stages(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """The same by the host's stages, `truncation.py`."""
    n, vocab_size = logits.shape
    changed = logits.cpu().float().clone()
    for stage in (Temperature(n), MinP(n), TopK(n, vocab_size), TopP(n)):
        for slot, one in enumerate(params):
            stage.admit(GeneratingSequence(slot, slot, np.zeros(1, np.uint32), 1, 0, np.zeros(1, np.uint32), one, 0))
        slots = np.flatnonzero(stage.active)
        if len(slots):
            part = changed[slots]
            stage.apply(part, slots)
            changed[slots] = part
    return changed.isfinite()


def adversarial_rows(vocab_size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(vocab_size)
    normal = torch.randn(vocab_size, generator=generator)
    peaked = torch.full((vocab_size,), -30.0)
    peaked[vocab_size // 2] = 30.0
    sparse = torch.full((vocab_size,), -INF)
    sparse[:: max(1, vocab_size // 7)] = normal[:: max(1, vocab_size // 7)]
    return {
        "normal": normal * 2,
        "flat": normal * 0.01,
        "wide": normal * 30,
        "ties": (normal * 4).round() / 2,
        "equal": torch.full((vocab_size,), -3.25),
        "peaked": peaked,
        "mostly -inf": sparse,
        "huge": normal * 1e37,
        "far from zero": normal + 1e4,
        "greatest twice": torch.cat((torch.tensor([9.0]), normal[1:-1], torch.tensor([9.0])))[:vocab_size],
    }


CUTS = [
    SamplingParams(top_k=1), SamplingParams(top_k=5, temperature=0.1), SamplingParams(top_k=50),
    SamplingParams(top_k=4000, temperature=1.7), SamplingParams(top_k=2**32 - 1), SamplingParams(top_p=0.1),
    SamplingParams(top_p=0.9), SamplingParams(top_p=0.999, temperature=2.0), SamplingParams(top_p=1e-6),
    SamplingParams(top_p=0.9, top_k=40), SamplingParams(top_p=0.5, top_k=3, temperature=0.3),
    SamplingParams(top_p=0.95, top_k=1000, min_p=0.01), SamplingParams(min_p=0.2),
    SamplingParams(min_p=1.0, top_p=0.7), SamplingParams(min_p=0.05, top_k=2, temperature=1e-3),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow encountered in divide")  # of the interpreter: x / 1e-3 may be -inf
@pytest.mark.parametrize("vocab_size", [1, 37, pytest.param(TILE + 451, marks=pytest.mark.thorough)])
def test_cuts_keep_what_the_hosts_stages_keep(device: torch.device, vocab_size: int) -> None:
    """A third of the cuts on each kind of row."""
    for which, (name, row) in enumerate(adversarial_rows(vocab_size).items()):
        params = [replace(p, top_k=p.top_k if p.top_k < vocab_size else 0) for p in CUTS[which % 3 :: 3]]
        logits = row.repeat(len(params), 1)
        kept, expected = (
            kept_by_kernels(Bench(params, vocab_size, device), logits.to(device)),
            kept_by_stages(logits, params),
        )
        for index, one in enumerate(params):
            same = torch.equal(kept[index], expected[index])
            assert same or is_a_tie_of_sums(row, one, kept[index], expected[index]), (name, one)


def is_a_tie_of_sums(logits: Tensor, params: SamplingParams, kept: Tensor, expected: Tensor) -> bool:
    """Whether two nuclei differ by tokens of one probability, without which the sum is within rounding of top-p."""
    x = scaled(logits[None], [params])[0].double()
    left = x[kept_by_stages(logits[None], [replace(params, top_p=1.0)])[0]]
    share = x[kept & expected].exp().sum() / left.exp().sum()
    return len(x[kept ^ expected].unique()) == 1 and bool((share - params.top_p).abs() < 1e-5)


@pytest.mark.parametrize(
    "params", [SamplingParams(top_k=17_000), SamplingParams(top_p=0.9), SamplingParams(top_k=19_000, top_p=0.6)]
)
def test_a_bracket_that_overflows_its_list_is_searched_in_the_row(device: torch.device, params: SamplingParams) -> None:
    """Logits so close together that they all lie between two pivots."""
    vocab_size = CAPACITY.value + 4000
    logits = torch.rand(1, vocab_size, generator=torch.Generator().manual_seed(5)) * 0.2
    logits[0, 77] = 0.3
    kept = kept_by_kernels(Bench([params], vocab_size, device), logits.to(device))
    assert torch.equal(kept, kept_by_stages(logits, [params]))
    assert kept.sum() > CAPACITY.value / 2


@pytest.mark.parametrize(
    "params", [SamplingParams(min_p=0.02, top_p=0.6), SamplingParams(min_p=0.02, top_k=70), SamplingParams(top_k=70)]
)
def test_what_min_p_took_counts_for_nothing(device: torch.device, params: SamplingParams) -> None:
    """60 likely tokens of probability 1/60, of which top-p keeps some, beside a mass of unlikely ones as great."""
    logits = torch.linspace(0.0, 0.5, 60).repeat(1, 50)
    logits[:, 60:] = torch.linspace(-4.5, -4.2, 2940)
    logits = logits[:, torch.randperm(3000, generator=torch.Generator().manual_seed(2))]
    kept = kept_by_kernels(Bench([params], 3000, device), logits.to(device))
    assert torch.equal(kept, kept_by_stages(logits, [params]))


@pytest.fixture(autouse=True)
def poisoned_scratch() -> Iterator[None]:
    """In this mode torch.empty fills with NaN, and integers with their greatest."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
