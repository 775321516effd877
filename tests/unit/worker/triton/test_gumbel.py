"""Randomness: bits, noise, and the draw by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.reference import philox
from services.worker.ops.triton.ops import TritonOps
from services.worker.ops.triton.sampling import columns as c
from services.worker.ops.triton.sampling.gumbel import gumbel, words

INF = float("inf")


@triton.jit
def noise_kernel(columns, position, out_words, out_noise, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    drawn = words(columns, 0, position, first, TILE)
    at = first + tl.arange(0, TILE)
    tl.store(out_words + at, drawn.to(tl.int32, bitcast=True))
    tl.store(out_noise + at, gumbel(drawn))


@triton.jit
def gumbel_kernel(words, noise, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(noise + at, gumbel(tl.load(words + at).to(tl.uint32, bitcast=True)))


def exact_noise(bits: Tensor) -> Tensor:
    return -torch.log(-torch.log1p(-(bits.double() + 0.5) * 2.0**-32))


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12345, 2**64 - 1])
@pytest.mark.parametrize(("position", "choice"), [(0, 0), (2**31 - 1, 3)])
def test_words_are_the_references_bit_for_bit(device: torch.device, seed: int, position: int, choice: int) -> None:
    entry = np.zeros(c.WIDTH.value, np.int32)
    entry[c.SEED.value : c.SEED.value + 2] = np.array([seed], np.uint64).view(np.int32)
    entry[c.CHOICE.value] = choice
    drawn = torch.zeros(3 * 256, dtype=torch.int32, device=device)
    noise = torch.full((3 * 256,), torch.nan, device=device)
    noise_kernel[(3,)](torch.from_numpy(entry).to(device), position, drawn, noise, TILE=256)
    counter = (torch.tensor(position), torch.tensor(choice), torch.arange(192), torch.zeros(192, dtype=torch.int64))
    key = (torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32))
    expected = torch.stack(philox(counter, key), dim=-1).flatten()
    assert torch.equal(drawn.cpu().long() & 0xFFFFFFFF, expected)
    torch.testing.assert_close(noise.cpu().double(), exact_noise(expected), rtol=0, atol=2e-6)


def test_noise_is_within_2e_6_of_the_exact_one_at_both_ends_of_the_range(device: torch.device) -> None:
    border = 2**28  # of the series
    anywhere = torch.randint(0, 2**32, (2**16,), generator=torch.Generator().manual_seed(0))
    ends = [torch.arange(4096), 2**32 - 1 - torch.arange(4096)]
    bits = torch.cat([*ends, border + torch.arange(-2048, 2048), 2**31 + torch.arange(-2048, 2048), anywhere])
    noise = torch.full((len(bits),), torch.nan, device=device)
    gumbel_kernel[(len(bits) // 4096,)](bits.to(torch.int32).to(device), noise, TILE=4096)
    error = (noise.cpu().double() - exact_noise(bits)).abs()
    assert error.max() < 2e-6


@pytest.mark.parametrize("vocab_size", [1, 6, 2 * c.TILE + 2])
def test_sample_gumbel_draws_what_the_reference_draws(device: torch.device, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(12, vocab_size, generator=generator) * 3
    logits[:, : vocab_size // 2] = -INF
    logits[3, vocab_size // 2 :] = torch.nan
    logits[3, -1] = -1000.0
    seeds = torch.randint(-(2**63), 2**63 - 1, (12,), generator=generator)
    positions = torch.randint(0, 2**31 - 1, (12,), generator=generator, dtype=torch.int32)
    choices = torch.arange(12, dtype=torch.int32)
    ops = TritonOps(device, torch.float32)
    got = ops.sample_gumbel(*(x.to(device) for x in (logits, seeds, positions, choices))).cpu()
    for row in range(12):
        counter = (positions[row].long(), choices[row].long(), torch.arange((vocab_size + 3) // 4), torch.tensor(0))
        bits = torch.stack(
            [*torch.broadcast_tensors(*philox(counter, (seeds[row] & 0xFFFFFFFF, (seeds[row] >> 32) & 0xFFFFFFFF)))], -1
        )
        score = (logits[row].double() + exact_noise(bits.flatten()[:vocab_size])).nan_to_num(nan=-INF)
        assert score.max() - score[got[row]] < 1e-5
    with pytest.raises(ValueError, match="seeds"):
        ops.sample_gumbel(logits.to(device), seeds.int().to(device), positions.to(device), choices.to(device))
    with pytest.raises(ValueError, match="logits"):
        ops.sample_gumbel(logits.double().to(device), seeds.to(device), positions.to(device), choices.to(device))
