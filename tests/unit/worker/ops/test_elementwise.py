"""Norms, activation and the vector functions under them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.ops.cpu import library
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import Activation
from services.worker.ops.reference import ReferenceOps

FEATURES = [1, 8, 15, 64, 172, 576, 1027]
EXP, LOG = 0, 1


def evaluate(cpu: CPUOps, function: int, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    library.load(cpu.level).functions.quire_evaluate(function, x.data_ptr(), y.data_ptr(), x.numel())
    return y


def ulps(got: Tensor, expected: Tensor) -> Tensor:
    """Distance in units of the expected value's last place."""
    spacing = np.spacing(expected.float().abs().numpy()).astype(np.float64)
    return (got.double() - expected).abs() / torch.from_numpy(spacing)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_rms_norm(cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, features: int, rows: int) -> None:
    x, weight = torch.randn(rows, features, generator=generator), torch.randn(features, generator=generator)
    expected = exact.rms_norm(x.double(), weight.double(), 1e-5)
    torch.testing.assert_close(cpu.rms_norm(x, weight, 1e-5).double(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("features", FEATURES)
def test_add_rms_norm_adds_in_place(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, features: int
) -> None:
    x, residual = torch.randn(2, 9, features, generator=generator)
    weight, total = torch.randn(features, generator=generator), x + residual
    normed = cpu.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(normed, cpu.rms_norm(total, weight, 1e-5))
    exact_residual = total.double() - x.double()
    expected = exact.add_rms_norm(x.double(), exact_residual, weight.double(), 1e-5)
    torch.testing.assert_close(normed.double(), expected, rtol=2e-6, atol=1e-7)


def test_rms_norm_of_heads_inside_a_fused_projection(cpu: CPUOps, generator: torch.Generator) -> None:
    fused, weight = torch.randn(5, 6, 24, generator=generator), torch.randn(24, generator=generator)
    keys = fused[:, 4:]
    assert torch.equal(cpu.rms_norm(keys, weight, 1e-6), cpu.rms_norm(keys.contiguous(), weight, 1e-6))


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kind", Activation)
def test_gated_activations(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, features: int, kind: Activation
) -> None:
    gate_up = 8 * torch.randn(150, 2 * features, generator=generator)
    gate_up[0, 0], gate_up[1, 0], gate_up[2, 0] = -200.0, 200.0, -0.0
    got, expected = cpu.gated_activation(gate_up, kind).double(), exact.gated_activation(gate_up.double(), kind)
    torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-5 if kind is Activation.GELU else 2e-6)
    if kind is not Activation.CLAMPED_SILU:
        x = gate_up[:, :features].contiguous()
        got, expected = cpu.activation(x, kind).double(), exact.activation(x.double(), kind)
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("features", FEATURES)
def test_a_row_has_the_same_bits_alone_and_in_any_crowd(
    cpu: CPUOps, generator: torch.Generator, threads: int, features: int
) -> None:
    x = torch.randn(300, 2 * features, generator=generator)
    residual, weight = torch.randn_like(x), torch.randn(2 * features, generator=generator)
    norm, silu = cpu.rms_norm(x, weight, 1e-5), cpu.gated_activation(x, Activation.SILU)
    added = cpu.add_rms_norm(x, residual.clone(), weight, 1e-5)
    for rows in (slice(0, 1), slice(299, 300), slice(7, 60)):
        assert torch.equal(cpu.rms_norm(x[rows], weight, 1e-5), norm[rows])
        assert torch.equal(cpu.add_rms_norm(x[rows], residual[rows].clone(), weight, 1e-5), added[rows])
        assert torch.equal(cpu.gated_activation(x[rows], Activation.SILU), silu[rows])


def test_equal_values_give_equal_bits_in_vector_body_and_tail(cpu: CPUOps) -> None:
    gate_up = torch.full((1, 2 * 37), 1.7)
    assert len(set(cpu.gated_activation(gate_up, Activation.SILU).flatten().tolist())) == 1
    assert len(set(cpu.rms_norm(torch.full((1, 37), 1.7), torch.ones(37), 1e-5).flatten().tolist())) == 1


def test_nan_stays_in_its_row(cpu: CPUOps, generator: torch.Generator) -> None:
    x, weight = torch.randn(4, 40, generator=generator), torch.ones(40)
    x[2, 39] = torch.nan
    for y in (cpu.rms_norm(x, weight, 1e-5), cpu.gated_activation(x, Activation.SILU)):
        assert y[2].isnan().any()
        assert not y[[0, 1, 3]].isnan().any()


def test_exp_is_within_1_1_ulp_and_saturates(cpu: CPUOps) -> None:
    x = torch.linspace(-87.3, 88.3, 4_000_003)
    assert ulps(evaluate(cpu, EXP, x), x.double().exp()).max() < 1.1
    inf = float("inf")
    edge = torch.tensor([0.0, -0.0, -87.4, -1e30, -inf, 88.4, 1e30, inf])
    assert evaluate(cpu, EXP, edge).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, inf, inf, inf]
    assert evaluate(cpu, EXP, torch.tensor([torch.nan])).isnan().all()


def test_log_is_within_1_ulp(cpu: CPUOps) -> None:
    x = torch.cat((torch.logspace(-37, 38, 1_000_001), torch.linspace(0.5, 2, 1_000_001)))
    x = x[x != 1]
    assert ulps(evaluate(cpu, LOG, x), x.double().log()).max() < 1.0
    assert evaluate(cpu, LOG, torch.ones(1)).item() == 0


@pytest.mark.parametrize("bad", [torch.zeros(2, 7), torch.zeros(2, 8).double(), torch.zeros(8, 4).t()])
def test_what_c_would_misread_is_refused(cpu: CPUOps, bad: Tensor) -> None:
    with pytest.raises(ValueError, match="gated_activation needs"):
        cpu.gated_activation(bad, Activation.SILU)
    with pytest.raises(ValueError, match="norm needs"):
        cpu.add_rms_norm(bad, bad, torch.ones(9), 1e-5)
