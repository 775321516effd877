"""Greedy output equals transformers' in float32, for each network: with chunks beside decodes, shuffled blocks and
preemption."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.models.case import Case, chosen
from tests.models.cases import ALL
from tests.models.tiny import VOCAB_SIZE, save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", chosen(ALL), ids=str)
def test_greedy_output_is_that_of_transformers(case: Case, tmp_path: Path) -> None:
    reference = save(tmp_path, case)
    runner = make_runner(tmp_path, 8, num_blocks=200, implementation=case.implementation)
    chooser = random.Random(str(case))
    requests = [
        Request([chooser.randrange(3, VOCAB_SIZE) for _ in range(chooser.choice((1, 2, 17, 40, 90)))], num_outputs=10)
        for _ in range(6)
    ]
    driver = Driver(runner, seed=len(str(case)), max_chunk=chooser.choice((5, 64)), max_running=4, preempt=0.05)
    near_ties = NearTies()
    for request in driver.run(*requests):
        assert request.error is None
        assert len(request.output) == 10
        near_ties.check(reference, request.prompt, request.output)
    near_ties.report()
