"""What an encoder's layers are made of: right to rounding, and bit for bit the same whatever shares the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.models.rope import RopeConfig
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import Activation, AttentionForm, Rotation, WholeSequences
from services.worker.ops.reference import ReferenceOps

FULL = AttentionForm(0.3, lookahead=1000)
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
    expected = exact.full_attention(q.double(), k.double(), v.double(), batch, FULL)
    before = fused.clone()
    attended = cpu.full_attention(q, k, v, batch, FULL)
    torch.testing.assert_close(attended.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(fused, before)


def form_with(generator: torch.Generator, name: str) -> AttentionForm:
    bias = torch.randn(4, 2 * 20 + 1, generator=generator)
    return {
        "full": FULL,
        "window": AttentionForm(0.3, sliding_window=13, lookahead=12),
        "past": AttentionForm(0.3, sliding_window=70, lookahead=1000),
        "bias": AttentionForm(0.3, lookahead=1000, distance_bias=bias),
        "bias in a window": AttentionForm(0.3, sliding_window=90, lookahead=3, distance_bias=bias),
    }[name]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("is_rotated", [False, True])
@pytest.mark.parametrize("name", ["full", "window", "past", "bias", "bias in a window"])
def test_windows_biases_and_rotation(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, name: str, is_rotated: bool
) -> None:
    batch, form = whole(90, 3, 600), form_with(generator, name)
    rotation = Rotation(RopeConfig(16, 100.0).cos_sin(600)) if is_rotated else None
    # [num_tokens, heads of queries, keys and values, head_dim]: two query heads share each KV head.
    fused = torch.randn(sum(batch.lengths), 4 + 2 + 2, 24, generator=generator)

    def attend(ops: CPUOps | ReferenceOps, fused: Tensor, batch: WholeSequences) -> Tensor:
        return ops.full_attention(fused[:, :4], fused[:, 4:6], fused[:, 6:], batch, form, rotation)

    attended = attend(cpu, fused.clone(), batch)
    torch.testing.assert_close(attended.double(), attend(exact, fused.double(), batch), rtol=1e-4, atol=1e-5)
    for start, length in ((0, 90), (90, 3), (93, 600)):
        part = slice(start, start + length)
        assert torch.equal(attend(cpu, fused[part].clone(), whole(length)), attended[part])


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
