"""Norms and gated activations against float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.models import Build
from services.worker.models.layers import RMSNorm
from services.worker.ops.interface import Activation
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps
from services.worker.weights import load_decoder
from tests.unit.worker.triton.random_tensors import DTYPES, assert_guards_intact, assert_rounded_once, draw, guarded

EXACT = ReferenceOps(torch.device("cpu"), torch.float64)
FEATURES = [1, 8, 72, 576, 1027, 4096]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", FEATURES)
def test_rms_norm(device: torch.device, dtype: torch.dtype, features: int) -> None:
    ops = TritonOps(device, dtype)
    x, weight = draw(5, features, dtype=dtype, device=device), draw(features, dtype=dtype, device=device, seed=1)
    expected = EXACT.rms_norm(x.double().cpu(), weight.double().cpu(), 1e-5)
    assert_rounded_once(ops.rms_norm(x, weight, 1e-5).cpu(), expected, slack=2e-6)


def test_a_norm_with_weights_around_0_keeps_their_digits(device: torch.device) -> None:
    stored = 0.01 * draw(72, dtype=torch.bfloat16, device=device)

    def create_network(build: Build) -> Any:
        return RMSNorm(build, "norm", 72, 1e-5, plus=1.0)

    config: Any = SimpleNamespace(create_network=create_network)
    source: Any = SimpleNamespace(vector=lambda name: stored)
    norm: Any = load_decoder(config, TritonOps(device, torch.bfloat16), source, max_positions=1).network
    x = draw(5, 72, dtype=torch.bfloat16, device=device, seed=1)
    expected = EXACT.rms_norm(x.double().cpu(), stored.double().cpu() + 1.0, 1e-5)
    assert_rounded_once(norm(x).cpu(), expected, slack=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", FEATURES)
def test_add_rms_norm_rounds_the_residual_and_norms_what_it_rounded(
    device: torch.device, dtype: torch.dtype, features: int
) -> None:
    ops = TritonOps(device, dtype)
    residual, whole = guarded(5, features, dtype=dtype, device=device)
    residual.copy_(draw(5, features, dtype=dtype, device=device))
    x = draw(5, features, dtype=dtype, device=device, seed=1)
    weight = draw(features, dtype=dtype, device=device, seed=2)
    total = residual.double() + x.double()
    normed = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert_rounded_once(residual.cpu(), total.cpu())
    assert torch.equal(normed, ops.rms_norm(residual, weight, 1e-5))
    assert_guards_intact(whole)


@pytest.mark.parametrize("heads", [1, 3, 20])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_rms_norm_of_heads_inside_a_fused_projection(device: torch.device, heads: int, head_dim: int) -> None:
    """Heads of nobody's before, behind and between them."""
    ops = TritonOps(device, torch.float32)
    fused = draw(7, 2 * heads + 5, head_dim, dtype=torch.float32, device=device)
    weight = draw(head_dim, dtype=torch.float32, device=device, seed=1)
    view = fused[:, 2 : 2 + 2 * heads : 2]
    normed = ops.rms_norm(view, weight, 1e-6)
    assert normed.is_contiguous()
    assert_rounded_once(normed.cpu(), EXACT.rms_norm(view.double().cpu(), weight.double().cpu(), 1e-6), slack=2e-6)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter: exp(90) is infinite
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kind", Activation)
def test_activations(device: torch.device, dtype: torch.dtype, features: int, kind: Activation) -> None:
    ops = TritonOps(device, dtype)
    gate_up = 4 * draw(3, 2 * features, dtype=dtype, device=device)
    large = 9.0 if kind is Activation.RELU_SQUARED else 90.0  # float16 ends at 65504
    gate_up[0, 0], gate_up[1, 0], gate_up[2, 0] = -90.0, large, -0.0
    # 1 + erf cancels where gelu is all but 0.
    absolute = 3e-6 if kind is Activation.GELU else 3e-7
    expected = EXACT.gated_activation(gate_up.double().cpu(), kind)
    assert_rounded_once(ops.gated_activation(gate_up, kind).cpu(), expected, slack=4e-6, absolute=absolute)
    if kind is not Activation.CLAMPED_SILU:
        expected = EXACT.activation(gate_up.double().cpu(), kind)
        assert_rounded_once(ops.activation(gate_up, kind).cpu(), expected, slack=4e-6, absolute=absolute)


def test_a_row_has_the_same_bits_alone_and_in_any_crowd(device: torch.device) -> None:
    ops = TritonOps(device, torch.float32)
    x = draw(40, 1200, dtype=torch.float32, device=device)
    residual = draw(40, 1200, dtype=torch.float32, device=device, seed=1)
    weight = draw(1200, dtype=torch.float32, device=device, seed=2)
    norm, silu = ops.rms_norm(x, weight, 1e-5), ops.gated_activation(x, Activation.SILU)
    added = ops.add_rms_norm(x, residual.clone(), weight, 1e-5)
    for rows in (slice(0, 1), slice(39, 40), slice(7, 20)):
        assert torch.equal(ops.rms_norm(x[rows], weight, 1e-5), norm[rows])
        assert torch.equal(ops.add_rms_norm(x[rows], residual[rows].clone(), weight, 1e-5), added[rows])
        assert torch.equal(ops.gated_activation(x[rows], Activation.SILU), silu[rows])


def test_nan_stays_in_its_row(device: torch.device) -> None:
    ops = TritonOps(device, torch.float32)
    x = draw(20, 40, dtype=torch.float32, device=device)  # 16 rows share a program
    x[2, 39] = torch.nan
    for y in (ops.rms_norm(x, torch.ones(40, device=device), 1e-5), ops.gated_activation(x, Activation.SILU)):
        assert y[2].isnan().any()
        assert not torch.cat((y[:2], y[3:])).isnan().any()


@pytest.mark.parametrize("bad", [torch.zeros(2, 7), torch.zeros(8, 4).t()])
def test_what_the_kernels_would_misread_is_refused(device: torch.device, bad: Tensor) -> None:
    ops = TritonOps(device, torch.float32)
    with pytest.raises(ValueError, match="activation needs"):
        ops.gated_activation(bad.to(device), Activation.SILU)
    with pytest.raises(ValueError, match="needs"):
        ops.rms_norm(bad.to(device), torch.ones(9, device=device), 1e-5)


def test_no_rows_are_no_launch(device: torch.device) -> None:
    ops = TritonOps(device, torch.float32)
    empty = torch.zeros(0, 8, device=device)
    assert ops.rms_norm(empty, torch.ones(8, device=device), 1e-5).shape == (0, 8)
    assert ops.gated_activation(empty, Activation.SILU).shape == (0, 4)
