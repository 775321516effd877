"""What an encoder's layers are made of: right to rounding, and bit for bit the same whatever shares the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import Activation, WholeSequences
from services.worker.ops.reference import ReferenceOps

FEATURES = [1, 8, 15, 64, 172, 384, 1027]


def whole(*lengths: int) -> WholeSequences:
    return WholeSequences(
        torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths]),
        torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        lengths,
    )


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("has_residual", [False, True])
def test_layer_norm(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, features: int, has_residual: bool
) -> None:
    # Means away from 0, so that a variance made of sums of squares alone would be far off.
    x, residual = torch.randn(2, 70, features, generator=generator) + 30
    weight, bias = torch.randn(2, features, generator=generator)
    given = residual if has_residual else None
    expected = exact.layer_norm(
        x.double(), weight.double(), bias.double(), 1e-5, residual.double() if has_residual else None
    )
    normed = cpu.layer_norm(x, weight, bias, 1e-5, given)
    torch.testing.assert_close(normed.double(), expected, rtol=1e-4, atol=1e-4)
    alone = cpu.layer_norm(x[41:42].clone(), weight, bias, 1e-5, None if given is None else given[41:42].clone())
    assert torch.equal(alone, normed[41:42])


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("features", FEATURES)
def test_gelu(cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, features: int, tanh: bool) -> None:
    x = 4 * torch.randn(50, features, generator=generator)
    y = cpu.activation(x, Activation.GELU_TANH if tanh else Activation.GELU)
    torch.testing.assert_close(
        y.double(),
        exact.activation(x.double(), Activation.GELU_TANH if tanh else Activation.GELU),
        rtol=1e-6,
        atol=5e-7,
    )
    assert torch.equal(cpu.activation(x[7:8].clone(), Activation.GELU_TANH if tanh else Activation.GELU), y[7:8])


def test_gelu_at_the_ends_of_the_number_line(cpu: CPUOps) -> None:
    x = torch.tensor([[-100.0, -0.0, 0.0, 100.0, float("nan")]])
    for tanh in (False, True):
        y = cpu.activation(x, Activation.GELU_TANH if tanh else Activation.GELU)[0]
        assert y[:4].tolist() == [0.0, 0.0, 0.0, 100.0]
        assert y[4].isnan()


@pytest.mark.parametrize("head_dim", [8, 20, 32, 64])
def test_full_attention_sees_every_token_of_its_own_sequence(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, head_dim: int
) -> None:
    batch = whole(3, 1, 130, 64, 300)
    fused = torch.randn(sum(batch.lengths), 3, 4, head_dim, generator=generator)
    q, k, v = fused.unbind(1)
    expected = exact.full_attention(q.double(), k.double(), v.double(), batch, 0.3)
    before = fused.clone()
    attended = cpu.full_attention(q, k, v, batch, 0.3)
    torch.testing.assert_close(attended.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(fused, before)


@pytest.mark.usefixtures("threads")
def test_a_sequence_s_attention_is_the_same_alone_and_in_a_batch(cpu: CPUOps, generator: torch.Generator) -> None:
    batch = whole(90, 3, 200)
    q, k, v = torch.randn(3, sum(batch.lengths), 2, 32, generator=generator)
    together = cpu.full_attention(q, k, v, batch, 0.2)
    for start, length in ((0, 90), (90, 3), (93, 200)):
        part = slice(start, start + length)
        assert torch.equal(cpu.full_attention(q[part], k[part], v[part], whole(length), 0.2), together[part])


def test_sums_that_are_made_in_parts_have_the_bits_of_one(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator
) -> None:
    x = torch.randn(200, 33, generator=generator)

    def summed(*cuts: int) -> Tensor:
        total = torch.zeros(1, 33)
        for start, end in zip((0, *cuts), (*cuts, 200), strict=True):
            cpu.add_segments(total, x[start:end], np.array([0, end - start]))
        return total

    assert torch.equal(summed(), summed(1, 64, 70, 199))
    totals = torch.ones(3, 33)
    cpu.add_segments(totals, x, np.array([0, 150, 150, 200]))
    expected = torch.ones(3, 33, dtype=torch.float64)
    exact.add_segments(expected, x.double(), np.array([0, 150, 150, 200]))
    torch.testing.assert_close(totals.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(totals[1], torch.ones(33))
