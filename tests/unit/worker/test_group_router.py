"""The choice of experts is that of transformers, ties included, and does not depend on the other tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from services.worker.models.layers import ExpertGroups, GroupRouter
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import Activation

NUM_EXPERTS, NUM_CHOSEN, FACTOR = 64, 6, 2.5

pytestmark = pytest.mark.usefixtures("batch_invariant")


def sizes(num_groups: int, num_chosen: int) -> dict[str, Any]:
    return {
        "hidden_size": NUM_EXPERTS, "n_routed_experts": NUM_EXPERTS, "num_experts_per_tok": NUM_CHOSEN,
        "n_group": num_groups, "topk_group": num_chosen, "routed_scaling_factor": FACTOR,
    }  # fmt: skip


def create(num_groups: int, num_chosen: int, bias: Tensor | None, *, normalizes: bool) -> GroupRouter:
    ops, groups = CPUOps(), ExpertGroups(num_groups, num_chosen, 1 if bias is None else 2)

    def score(logits: Tensor) -> Tensor:
        return logits.softmax(-1) if bias is None else ops.activation(logits, Activation.SIGMOID)

    return GroupRouter(score, NUM_CHOSEN, groups, bias, normalizes=normalizes, factor=FACTOR)


def assert_same(router: GroupRouter, reference: torch.nn.Module, logits: Tensor) -> None:
    """`reference` multiplies hidden states, here the logits, by its weight, here the unit matrix."""
    with torch.no_grad():
        reference.get_parameter("weight").copy_(torch.eye(NUM_EXPERTS))
        _, expected_weights, expected_ids = reference(logits)
    ids, weights = router(logits)
    order, expected_order = ids.argsort(-1), expected_ids.argsort(-1)
    assert torch.equal(ids.gather(1, order), expected_ids.gather(1, expected_order))
    torch.testing.assert_close(weights.gather(1, order), expected_weights.gather(1, expected_order))


@pytest.mark.parametrize("num_ties", [0, 2])
@pytest.mark.parametrize("normalizes", [False, True])
def test_v3s_choice_is_that_of_transformers(num_ties: int, normalizes: bool) -> None:
    generator = torch.Generator().manual_seed(num_ties)
    logits, bias = torch.randn(200, NUM_EXPERTS, generator=generator), torch.randn(NUM_EXPERTS, generator=generator) / 8
    if num_ties:
        logits, bias = (logits * num_ties).round() / num_ties, torch.zeros(NUM_EXPERTS)
    reference = DeepseekV3TopkRouter(DeepseekV3Config(**sizes(8, 3), norm_topk_prob=normalizes))
    reference.get_buffer("e_score_correction_bias").copy_(bias)
    assert_same(create(8, 3, bias, normalizes=normalizes), reference, logits)


@pytest.mark.parametrize("num_ties", [0, 2])
def test_v2s_choice_is_that_of_transformers(num_ties: int) -> None:
    logits = torch.randn(200, NUM_EXPERTS, generator=torch.Generator().manual_seed(num_ties))
    logits = (logits * num_ties).round() / num_ties if num_ties else logits
    reference = DeepseekV2TopkRouter(DeepseekV2Config(**sizes(8, 3), topk_method="group_limited_greedy"))
    assert_same(create(8, 3, None, normalizes=False), reference, logits)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_tokens_choice_has_the_same_bits_in_any_batch(has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(300, NUM_EXPERTS, generator=generator)
    router = create(8, 3, torch.randn(NUM_EXPERTS, generator=generator) if has_bias else None, normalizes=True)
    ids, weights = router(logits)
    for count in (1, 2, 3, 7, 8, 16, 17, 64, 129):
        some = slice(count, 2 * count)
        some_ids, some_weights = router(logits[some].contiguous())
        assert torch.equal(some_ids, ids[some])
        assert torch.equal(some_weights, weights[some])
