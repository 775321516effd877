"""A sequence's bits do not depend on its batch, on chunks or on preemptions: for one network of each kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from services.worker.plan.sampling_params import SamplingParams
from services.worker.step.model_runner import ModelRunner
from tests.models.case import Case
from tests.models.cases import ALL
from tests.models.tiny import VOCAB_SIZE, save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner

pytestmark = pytest.mark.usefixtures("one_thread", "batch_invariant")

KINDS = {
    "dense": "phi",
    "mixture of experts": "qwen3_moe",
    "latent attention and experts": "deepseek_v3",
    "dense, transformers' code": "apertus, transformers' code",
    "experts, transformers' code": "olmoe, transformers' code",
    "latent attention and experts, transformers' code": "deepseek_v3, transformers' code",
}
ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_changes_no_bit(kind: str, tmp_path: Path) -> None:
    case = next(case for case in ALL if str(case) == KINDS[kind])
    save(tmp_path, case)
    runner = make_runner(tmp_path, 8, num_blocks=300, max_num_seqs=16, implementation=case.implementation)
    alone, together = _subjects(case), _subjects(case)
    for request in alone:
        Driver(runner).run(request)
    chooser = random.Random(str(case))
    crowd = [Request(_prompt(chooser, chooser.randint(1, 60)), chooser.randint(1, 20)) for _ in range(20)]
    _run_shuffled(runner, [*together, *crowd], chooser)
    for one, other in zip(alone, together, strict=True):
        assert one.error is None
        assert other.error is None
        assert (one.output, one.logprobs) == (other.output, other.logprobs)


def _subjects(case: Case) -> list[Request]:
    chooser = random.Random(str(case))
    return [Request(_prompt(chooser, length), 12, ALL_LOGPROBS) for length in (1, 9, 33, 70)]


def _run_shuffled(runner: ModelRunner, requests: list[Request], chooser: random.Random) -> None:
    chooser.shuffle(requests)
    Driver(runner, seed=3, max_chunk=13, max_running=12, preempt=0.03).run(*requests)


def _prompt(chooser: random.Random, length: int) -> list[int]:
    return [chooser.randrange(3, VOCAB_SIZE) for _ in range(length)]
