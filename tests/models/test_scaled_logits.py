"""Log probabilities equal transformers' where a factor or a soft cap changes logits. Greedy output shows neither."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.worker.plan.sampling_params import SamplingParams
from tests.models.case import Case
from tests.models.cases.gemma4 import SIZES as GEMMA4
from tests.models.tiny import save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner, reference_logits

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = [5, 60, 7, 100, 9, 30]


CASES = [
    Case("cohere", {"logit_scale": 0.3}),
    Case("granite", {"logits_scaling": 5.0}),
    Case("granite", {"logits_scaling": 5.0}, variant="transformers' code", implementation="transformers"),
    Case("gemma2", {"head_dim": 16, "num_key_value_heads": 2, "final_logit_softcapping": 3.0}),
    Case("gemma4_text", GEMMA4 | {"final_logit_softcapping": 3.0}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_probabilities_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    reference = save(tmp_path, case)
    request = Request(PROMPT, 8, SamplingParams(temperature=0.0, logprobs=0))
    Driver(make_runner(tmp_path, implementation=case.implementation), seed=0).run(request)
    likely = reference_logits(reference, PROMPT + request.output[:-1])[len(PROMPT) - 1 :].log_softmax(-1)
    expected = likely[torch.arange(8), torch.tensor(request.output)]
    assert [logprob for logprob, _ in request.logprobs] == pytest.approx(expected.tolist(), abs=1e-4)
