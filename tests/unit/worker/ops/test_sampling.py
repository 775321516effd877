"""Counter-based Gumbel-max sampling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.worker.ops.cpu import library
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import Ops
from services.worker.ops.reference import ReferenceOps, philox

# Counter, key, output: the known answers published with Random123 (Salmon et al.).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def draw(ops: Ops, logits: Tensor, seeds: object, positions: object, choices: object) -> Tensor:
    rows = len(logits)
    seeds = torch.as_tensor(seeds, dtype=torch.int64).expand(rows).contiguous()
    positions, choices = (torch.as_tensor(x, dtype=torch.int32).expand(rows).contiguous() for x in (positions, choices))
    return ops.sample_gumbel(logits, seeds, positions, choices)


@pytest.fixture
def reference() -> ReferenceOps:
    return ReferenceOps(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    cpu: CPUOps, counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox(tuple(torch.tensor(c) for c in counter), (torch.tensor(key[0]), torch.tensor(key[1])))  # type: ignore[arg-type]
    assert tuple(int(w) for w in words) == expected

    def unsigned(values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(torch.uint32)

    c, k, out = unsigned(counter), unsigned(key), torch.zeros(4, dtype=torch.uint32)
    library.load(cpu.level).functions.quire_philox(c.data_ptr(), k.data_ptr(), out.data_ptr())
    assert tuple(out.tolist()) == expected


def test_noise_is_within_4e_7_of_the_exact_one_at_both_ends_of_the_range(cpu: CPUOps) -> None:
    bits = torch.cat(
        (torch.arange(5000), 2**31 + torch.arange(-5000, 5000), 2**32 - 1 - torch.arange(5000),
         torch.randint(0, 2**32, (2_000_000,), generator=torch.Generator().manual_seed(0)))
    )  # fmt: skip
    u = (bits.double() + 0.5) * 2.0**-32
    words, noise = bits.to(torch.uint32), torch.empty(len(bits))
    library.load(cpu.level).functions.quire_evaluate(2, words.data_ptr(), noise.data_ptr(), len(bits))
    exact = -torch.log(-torch.log1p(-u))
    assert ((noise.double() - exact).abs() / exact.abs().clamp(min=1)).max() < 4e-7


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.sampled_from([1, 2, 3, 17, 64, 65, 1000, 49152]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**31 - 1),
    choice=st.integers(0, 2**31 - 1),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_draws_equal_the_reference(
    cpu: CPUOps, vocab: int, seed: int, position: int, choice: int, spread: float
) -> None:
    reference = ReferenceOps(torch.device("cpu"), torch.float32)
    logits = spread * torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed % 1000))
    got, expected = (draw(ops, logits, seed, position, choice) for ops in (cpu, reference))
    for row in range(3):
        if got[row] != expected[row]:
            assert gap_to_winner(logits[row], seed, position, choice, int(got[row])) < 1e-5


def gap_to_winner(logits: Tensor, seed: int, position: int, choice: int, token: int) -> float:
    """How far `token`'s perturbed logit is below the best one, in float64."""
    counter = (position, choice, 0, 0)
    key = (torch.tensor(seed & 0xFFFFFFFF), torch.tensor((seed >> 32) & 0xFFFFFFFF))
    c = [torch.tensor(v) for v in counter]
    c[2] = torch.arange((len(logits) + 3) // 4)
    words = torch.stack(philox((c[0], c[1], c[2], c[3]), key), dim=-1).flatten()[: len(logits)]
    perturbed = logits.double() - torch.log(-torch.log1p(-(words.double() + 0.5) * 2.0**-32))
    return float(perturbed.max() - perturbed[token])


@pytest.mark.parametrize("vary", ["seed", "position", "choice"])
def test_draws_follow_the_softmax(cpu: CPUOps, vary: str) -> None:
    """Chi-square over 200,000 draws; the bound is the 99.99 % quantile for 6 degrees of freedom."""
    draws = 200_000
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0, 1.1, -torch.inf, -0.4, 0.9])
    arguments = {name: torch.arange(draws) if name == vary else 7 for name in ("seed", "position", "choice")}
    tokens = draw(cpu, logits.expand(draws, -1).contiguous(), *arguments.values())
    counts, expected = tokens.bincount(minlength=8).double(), logits.double().softmax(0) * draws
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert float(((counts - expected)[possible].square() / expected[possible]).sum()) < 27.9


def test_a_draw_depends_on_its_own_row_alone(cpu: CPUOps, generator: torch.Generator, threads: int) -> None:
    logits = torch.randn(20, 5003, generator=generator)
    seeds, positions = torch.arange(20), torch.arange(20) * 3
    together = draw(cpu, logits, seeds, positions, 1)
    for row in range(20):
        alone = draw(cpu, logits[row : row + 1].contiguous(), seeds[row], positions[row], 1)
        assert alone.item() == together[row].item()


def test_minus_infinity_is_never_drawn_and_a_lone_candidate_always(cpu: CPUOps, reference: ReferenceOps) -> None:
    logits = torch.full((300, 1000), -torch.inf)
    wanted = torch.arange(300) * 3
    logits[torch.arange(300), wanted] = -1000.0
    for ops in (cpu, reference):
        assert torch.equal(draw(ops, logits, 1, torch.arange(300), 0), wanted)


def test_nan_logits_are_passed_over(cpu: CPUOps) -> None:
    logits = torch.tensor([[torch.nan, 0.0, torch.nan, 1.0, torch.nan]])
    assert draw(cpu, logits, 1, 2, 3).item() in (1, 3)


def test_what_c_would_misread_is_refused(cpu: CPUOps) -> None:
    one, two = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="logits"):
        cpu.sample_gumbel(torch.zeros(1, 4).double(), one.long(), one, one)
    with pytest.raises(ValueError, match="seeds"):
        cpu.sample_gumbel(torch.zeros(1, 4), one, one, one)
    with pytest.raises(ValueError, match="seeds"):
        cpu.sample_gumbel(torch.zeros(1, 4), one.long(), two, one)
