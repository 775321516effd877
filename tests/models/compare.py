"""Compares one case with transformers."""

from __future__ import annotations

import random
from pathlib import Path

from tests.models.case import Case
from tests.models.tiny import VOCAB_SIZE, save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

BLOCK_SIZE = 8
NUM_OUTPUTS = 10


def compare(case: Case, directory: Path) -> NearTies:
    """Generates greedily, in float32, with chunks beside decodes, shuffled blocks, preemption and a prefix that is
    computed already. Fails if a token is not transformers' own."""
    reference = save(directory, case)
    runner = make_runner(directory, BLOCK_SIZE, num_blocks=200, implementation=case.implementation)
    chooser = random.Random(str(case))

    def prompt(length: int) -> list[int]:
        return [chooser.randrange(3, VOCAB_SIZE) for _ in range(length)]

    requests = [Request(prompt(chooser.choice((1, 2, 17, 40, 90))), NUM_OUTPUTS) for _ in range(6)]
    driver = Driver(runner, seed=len(str(case)), max_chunk=chooser.choice((5, 64)), max_running=4, preempt=0.05)
    driver.run(*requests)
    driver.preempt = 0.0  # a preemption would free the prefix
    prefix = prompt(3 * BLOCK_SIZE)
    over_prefix = Request(prefix + prompt(5), NUM_OUTPUTS)
    driver.run_over_blocks(over_prefix, driver.compute_blocks(prefix))
    near_ties = NearTies()
    for request in (*requests, over_prefix):
        assert request.error is None, request.error
        assert len(request.output) == NUM_OUTPUTS
        near_ties.check(reference, request.prompt, request.output)
    near_ties.report()
    return near_ties
