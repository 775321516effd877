"""A whole model on the kernels, driven as a scheduler drives it: norms over heads, rotation, pages, sampler and all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.worker.ops.triton.ops import TritonOps
from services.worker.plan.sampling_params import SamplingParams
from tests.models.cases import ALL
from tests.models.tiny import VOCAB_SIZE, save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner, save_model


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_the_likeliest_tokens_are_transformers_own(
    device: torch.device, tmp_path: Path, family: str, batch_invariant: bool
) -> None:
    model = save_model(tmp_path, family)
    runner = make_runner(tmp_path, ops=TritonOps(device, torch.float32, batch_invariant=batch_invariant))
    generator = torch.Generator().manual_seed(1)
    requests = [
        Request(torch.randint(3, 199, (length,), generator=generator).tolist(), 4, sampling)
        for length, sampling in (
            (17, SamplingParams(temperature=0.0)),
            (3, SamplingParams(temperature=0.0, logprobs=2)),
        )
    ]
    Driver(runner, seed=3, max_chunk=9).run(*requests)
    ties = NearTies()
    for request in requests:
        assert request.error is None
        ties.check(model, request.prompt, request.output)
    ties.report()
    assert len(requests[1].logprobs) == 4
    for (logprob, top), token in zip(requests[1].logprobs, requests[1].output, strict=True):
        assert top[0] == (token, logprob)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek_v3",
        pytest.param("gemma4_text, experts", marks=pytest.mark.thorough),
        "gpt_oss",
        pytest.param("mimo_v2_flash, transformers' code", marks=pytest.mark.thorough),
    ],
)
def test_networks_of_other_layers_give_transformers_tokens(device: torch.device, tmp_path: Path, name: str) -> None:
    """A latent cache with groups of experts; heads of several sizes with experts beside an MLP; sinks, windows and
    biases; and transformers' code."""
    (case,) = (case for case in ALL if str(case) == name)
    reference = save(tmp_path, case)
    runner = make_runner(
        tmp_path, 8, num_blocks=40, ops=TritonOps(device, torch.float32), implementation=case.implementation
    )
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (13, 2)]
    requests = [Request(prompt, 3) for prompt in prompts]
    Driver(runner, seed=3, max_chunk=9).run(*requests)
    ties = NearTies()
    for request in requests:
        assert request.error is None
        ties.check(reference, request.prompt, request.output)
    ties.report()
