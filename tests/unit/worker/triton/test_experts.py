"""Mixtures of experts as grouped products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from services.worker.ops import Activate, Activation, Experts
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps
from services.worker.quantization.kinds import Int8Weight
from tests.unit.worker.triton.random_tensors import draw

HALF_AND_SINGLE = [torch.float16, torch.float32]  # Triton's interpreter multiplies no bfloat16


def make_experts(
    ops: TritonOps | ReferenceOps,
    num_experts: int,
    hidden: int,
    inner: int,
    *,
    bias: bool = False,
    activation: Activate = Activation.SILU,
) -> Experts:
    def layers(outputs: int, inputs: int, seed: int) -> list[tuple[Tensor, Tensor | None]]:
        weights = draw(num_experts, outputs * inputs, dtype=ops.dtype, device=ops.device, seed=seed) / inputs**0.5
        biases = draw(num_experts, outputs, dtype=ops.dtype, device=ops.device, seed=seed + 1)
        return [(w.view(outputs, inputs), b if bias else None) for w, b in zip(weights, biases, strict=True)]

    gate_up, down = (
        [ops.linear(*one) for one in layers(*sizes)] for sizes in ((2 * inner, hidden, 1), (hidden, inner, 3))
    )
    return ops.experts(gate_up, down, activation)


def draw_choices(num_tokens: int, num_experts: int, num_chosen: int, device: torch.device) -> tuple[Tensor, Tensor]:
    scores = draw(num_tokens, num_experts, dtype=torch.float32, device=device, seed=7)
    weights, expert_ids = scores.softmax(-1).topk(num_chosen, dim=-1)
    return expert_ids, weights


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "hidden", "inner", "bias"),
    [
        (1, 4, 1, 16, 16, False),
        (3, 5, 2, 40, 24, True),  # sizes that are no multiples of a tile
        (30, 3, 2, 72, 100, False),  # some 20 rows for each expert
        (70, 2, 2, 64, 64, True),  # all choose both, in several tiles each
    ],
)
def test_outputs_are_those_of_the_reference(
    device: torch.device,
    dtype: torch.dtype,
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    hidden: int,
    inner: int,
    bias: bool,
) -> None:
    x = draw(num_tokens, hidden, dtype=dtype, device=device)
    expert_ids, weights = draw_choices(num_tokens, num_experts, num_chosen, device)
    expected = make_experts(ReferenceOps(device, torch.float32), num_experts, hidden, inner, bias=bias)
    got = make_experts(TritonOps(device, dtype), num_experts, hidden, inner, bias=bias)(
        x, expert_ids, weights.to(dtype)
    )
    assert got.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    wanted = expected(x.float(), expert_ids, weights)
    torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance)


def test_an_activation_can_be_a_function(device: torch.device) -> None:
    def add_halves(x: Tensor) -> Tensor:
        return x[:, :24] + x[:, 24:]

    ops = TritonOps(device, torch.float32)
    x = draw(5, 16, dtype=torch.float32, device=device)
    expert_ids, weights = draw_choices(5, 4, 2, device)
    expected = make_experts(ReferenceOps(device, torch.float32), 4, 16, 24, activation=add_halves)
    got = make_experts(ops, 4, 16, 24, activation=add_halves)
    torch.testing.assert_close(got(x, expert_ids, weights), expected(x, expert_ids, weights), rtol=1e-5, atol=1e-5)


def test_all_tokens_may_choose_the_same_expert(device: torch.device) -> None:
    experts = make_experts(TritonOps(device, torch.float32), 6, 16, 16)
    expected = make_experts(ReferenceOps(device, torch.float32), 6, 16, 16)
    x = draw(40, 16, dtype=torch.float32, device=device)
    for chosen in (0, 5):
        expert_ids, weights = torch.full((40, 1), chosen, device=device), torch.ones(40, 1, device=device)
        torch.testing.assert_close(
            experts(x, expert_ids, weights), expected(x, expert_ids, weights), rtol=1e-5, atol=1e-5
        )


def test_a_token_has_the_same_bits_alone_and_in_any_crowd(device: torch.device) -> None:
    """The crowds have tiles of 16, 32 and 64 rows."""
    experts = make_experts(TritonOps(device, torch.float32), 2, 80, 48, bias=True)
    x = draw(100, 80, dtype=torch.float32, device=device)
    expert_ids, weights = draw_choices(100, 2, 1, device)
    together = experts(x, expert_ids, weights)
    for rows in (slice(0, 1), slice(7, 9), slice(20, 70)):
        assert torch.equal(experts(x[rows], expert_ids[rows], weights[rows]), together[rows])


def test_no_tokens_have_no_outputs(device: torch.device) -> None:
    experts = make_experts(TritonOps(device, torch.float32), 3, 16, 16)
    nothing = torch.empty(0, 2, device=device)
    assert experts(torch.empty(0, 16, device=device), nothing.long(), nothing).shape == (0, 16)


@pytest.mark.parametrize("quantize_activations", [False, True])
def test_quantized_experts_are_turned_into_floats(device: torch.device, quantize_activations: bool) -> None:
    def matrices(seed: int) -> list[Int8Weight]:
        values = draw(3, 32, 32, dtype=torch.float32, device=device, seed=seed).mul(40).round().to(torch.int8)
        return [Int8Weight(one, torch.full((32, 1), 1e-3, device=device), quantize_activations) for one in values]

    def double(x: Tensor) -> Tensor:
        return x + x

    ops = TritonOps(device, torch.float32)
    first, second = matrices(1), matrices(2)
    floats = [[ops.linear(weight.dequantize()) for weight in weights] for weights in (first, second)]
    quantized = [[ops.linear(weight) for weight in weights] for weights in (first, second)]
    x = draw(9, 32, dtype=torch.float32, device=device)
    choices = draw_choices(9, 3, 2, device)
    expected = ops.experts(floats[0], floats[1], double)(x, *choices)
    got = ops.experts(quantized[0], quantized[1], double)(x, *choices)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
