"""Both samplers take the steps in the order of docs/sampling.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.plan.sampling_params import SamplingParams
from services.worker.sampling.token_mask import TokenMask
from tests.unit.worker.sampling.conftest import MakeSampler
from tests.unit.worker.sampling.test_sampler import admit, packed, sample

DOCUMENT = Path(__file__).parents[4] / "docs" / "sampling.md"
# (a step, a later one, parameters, the logits of tokens 0, 1 and so on, what may be drawn if the order is kept). Token
# 0 is in the prompt, and twice in the output. In the opposite order, something else may be drawn.
CASES: list[tuple[str, str, dict[str, Any], list[float], set[int]]] = [
    # (-1 + 3) / 1.25 = 1.6; otherwise -1 * 1.25 + 3 = 1.75.
    ("logit_bias", "repetition_penalty", {"logit_bias": ((0, 3.0),), "repetition_penalty": 1.25}, [-1, 1.7], {1}),
    # 2 / 4 - 1 = -0.5; otherwise (2 - 1) / 4.
    ("repetition_penalty", "presence_penalty", {"repetition_penalty": 4.0, "presence_penalty": 1.0}, [2, 0], {1}),
    # 4 / 4 - 2 = -1; otherwise (4 - 2) / 4.
    ("repetition_penalty", "frequency_penalty", {"repetition_penalty": 4.0, "frequency_penalty": 1.0}, [4, 0], {1}),
    # 0 + 20 is the greatest; otherwise the cut had left token 1 alone.
    ("logit_bias", "top_k", {"logit_bias": ((0, 20.0),), "top_k": 1, "temperature": 1.0}, [0, 10, 9], {0}),
    ("presence_penalty", "top_k", {"presence_penalty": 2.0, "top_k": 1, "temperature": 1.0}, [2, 1, 0], {1}),
    # Token 2 is forbidden, and the likeliest of the others is kept.
    ("mask", "top_k", {"top_k": 1, "temperature": 1.0}, [0, 1, 9], {1}),
    ("mask", "min_p", {"min_p": 0.9, "temperature": 1.0}, [0, 1, 9], {1}),
    ("mask", "top_p", {"top_p": 0.7, "temperature": 1.0}, [0, 1, 9], {1}),
    # A tenth as likely at temperature 1, a third at 2.1.
    ("temperature", "min_p", {"min_p": 0.2, "temperature": 2.1}, [0, -9, -9, 2.3], {0, 3}),
    # Four tokens with 0.4, 0.3, 0.2 and 0.1: of the two that are left, the first alone has 0.57.
    ("top_k", "top_p", {"top_k": 2, "top_p": 0.55, "temperature": 1.0}, list(np.log([0.3, 0.1, 0.2, 0.4])), {3}),
    # 0.4 and 0.3 are left: 0.4 alone has 0.57 of that, and 0.4 of all.
    ("min_p", "top_p", {"min_p": 0.6, "top_p": 0.55, "temperature": 1.0}, list(np.log([0.3, 0.1, 0.2, 0.4])), {3}),
    # At 0.5, the likeliest has 0.53 of all.
    ("temperature", "top_p", {"top_p": 0.5, "temperature": 0.5}, list(np.log([0.3, 0.1, 0.2, 0.4])), {3}),
]


def steps() -> list[str]:
    """Their names, as the document lists them."""
    return re.findall(r"^\d+\. `(\w+)`", DOCUMENT.read_text(), re.MULTILINE)


def test_every_parameter_has_its_place_in_the_list() -> None:
    fields = set(SamplingParams.__dataclass_fields__) - {"prompt_logprobs", "logprob_token_ids"}
    assert set(steps()) == fields | {"mask"}


@pytest.mark.parametrize(
    ("first", "second", "params", "logits", "expected"), CASES, ids=[f"{one}-{other}" for one, other, *_ in CASES]
)
def test_a_step_comes_before_another(
    make_sampler: MakeSampler,
    first: str,
    second: str,
    params: dict[str, Any],
    logits: list[float],
    expected: set[int],
) -> None:
    listed = steps()
    assert listed.index(first) < listed.index(second)
    num_seeds, vocab_size = 16, 40
    sampler = make_sampler(num_seeds, vocab_size)
    for slot in range(num_seeds):
        admit(sampler, slot, SamplingParams(**{"temperature": 0.0, "seed": slot} | params), [0], [0, 0])
    rows = torch.full((num_seeds, vocab_size), -50.0)
    rows[:, : len(logits)] = torch.tensor(logits)
    mask = None
    if first == "mask":
        allowed = torch.ones(num_seeds, vocab_size, dtype=torch.bool)
        allowed[:, 2] = False
        mask = TokenMask(np.arange(num_seeds), packed(allowed).to(sampler.last_tokens.device))
    drawn = sample(sampler, rows, list(range(num_seeds)), mask=mask).tokens.tolist()
    assert set(drawn) == expected
