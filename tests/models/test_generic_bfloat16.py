"""transformers' code on Quire's pages in bfloat16: as near to float32's logits as transformers alone in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from services.worker.models import Decoder
from services.worker.startup.create_ops import create_ops
from tests.models.cases.generic import CASES
from tests.models.tiny import save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

# Dense layers; and routers that compute in float32 in each of the ways of transformers' models.
MODEL_TYPES = ("llama", "minimax_m2", "hunyuan_v1_moe", "deepseek_v3")
PROMPTS = [[3 + (37 * at + 11 * number + at * at * number) % 190 for at in range(40)] for number in range(16)]


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The logits that a decoder returns, step by step."""
    returned: list[Tensor] = []
    compute = Decoder.logits

    def listen(decoder: Decoder, hidden_states: Tensor) -> Tensor:
        returned.append(compute(decoder, hidden_states))
        return returned[-1]

    monkeypatch.setattr(Decoder, "logits", listen)
    return returned


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_are_as_precise_as_those_of_transformers(model_type: str, tmp_path: Path, logits: list[Tensor]) -> None:
    case = next(case for case in CASES if case.model_type == model_type)
    auto: Any = transformers.AutoModelForCausalLM
    with torch.inference_mode():
        exact = save(tmp_path, case)(torch.tensor(PROMPTS)).logits[:, -1]
        rounded = auto.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager").eval()
        theirs = rounded(torch.tensor(PROMPTS)).logits[:, -1].float()
    ops = create_ops(torch.device("cpu"), torch.bfloat16)
    runner = make_runner(tmp_path, ops=ops, implementation="transformers")
    ours = []
    for prompt in PROMPTS:
        request = Request(prompt, num_outputs=1)
        Driver(runner, seed=0, max_chunk=64).run(request)
        assert request.error is None
        ours.append(logits[-1][0].float())
    # The median: a router that is nearly undecided may choose another expert.
    errors = [(found - exact).norm(dim=-1).median() for found in (torch.stack(ours), theirs)]
    assert errors[0] <= 1.5 * errors[1]
