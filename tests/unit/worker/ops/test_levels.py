"""Every level that has fused multiply-add gives the same bits, so a sequence may move between machines."""

from __future__ import annotations

import pytest
import torch

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import Activation
from tests.unit.worker.ops.paging import Heads, random_sequence, run_alone


@pytest.fixture
def fused(levels: list[str]) -> list[CPUOps]:
    found = [CPUOps(level) for level in levels if level not in ("x86-64-v2", "generic")]
    if len(found) < 2:
        pytest.skip("one level here")
    return found


def test_products_norms_and_activations(fused: list[CPUOps], generator: torch.Generator) -> None:
    weight, bias = torch.randn(173, 77, generator=generator), torch.randn(173, generator=generator)
    x, scale = 3 * torch.randn(13, 77, generator=generator), torch.randn(77, generator=generator)
    results = []
    for ops in fused:
        residual = x.flip(0).contiguous()
        normed = ops.add_rms_norm(x, residual, scale, 1e-5)
        results.append(
            (ops.linear(weight, bias)(x), normed, ops.gated_activation(x[:, :76].contiguous(), Activation.SILU))
        )
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(3, 1, 24), Heads(4, 2, 8)], ids=str)
def test_attention(fused: list[CPUOps], generator: torch.Generator, heads: Heads) -> None:
    sequence = random_sequence(generator, 600, heads)
    first, *others = (run_alone(ops, heads, sequence, window=400) for ops in fused)
    for other in others:
        assert torch.equal(other, first)


def test_draws(fused: list[CPUOps], generator: torch.Generator) -> None:
    logits, rows = torch.randn(64, 5000, generator=generator), torch.arange(64)
    first, *others = (ops.sample_gumbel(logits, rows, rows.int(), rows.int()) for ops in fused)
    for other in others:
        assert torch.equal(other, first)
