"""Compares one case with transformers."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from services.worker.plan.sampling_params import SamplingParams
from tests.models.case import Case
from tests.models.tiny import VOCAB_SIZE, save
from tests.unit.worker.driver import Driver, Interruption, Prefix, Request
from tests.unit.worker.tiny_models import NearTies, make_runner, reference_logits

BLOCK_SIZE = 8
NUM_OUTPUTS = 10
# Of log probabilities, because keys in a wrong place do not always lead to another token. The largest difference of
# all cases is 4e-5.
TOLERANCE = 2e-4
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
LENGTHS = (1, 2, 17, 40, 90)  # of prompts
RECOMPUTED, SWAPPED = (False,), (True,)
INTERRUPTED = [(), RECOMPUTED, SWAPPED, (*RECOMPUTED, *SWAPPED), (*SWAPPED, *RECOMPUTED)]


def compare(case: Case, directory: Path) -> NearTies:
    """Generates greedily, in float32, with chunks beside decodes, shuffled blocks, preemption, swaps, and prefixes that
    other sequences computed. Fails if a token or its probability is not transformers' own, or if one of these did not
    happen."""
    reference = save(directory, case)
    runner = make_runner(directory, BLOCK_SIZE, num_blocks=200, num_host_blocks=200, implementation=case.implementation)
    chooser = random.Random(str(case))

    def prompt(length: int) -> list[int]:
        return [chooser.randrange(3, VOCAB_SIZE) for _ in range(length)]

    driver = Driver(runner, seed=len(str(case)), max_chunk=chooser.choice((5, 64)), max_running=4)
    found = prompt(3 * BLOCK_SIZE + 5)
    computed = driver.compute(found)
    requests = [Request(prompt(length), NUM_OUTPUTS, GREEDY) for length in LENGTHS]
    for num_tokens in (2 * BLOCK_SIZE, len(found)):
        prefix = Prefix(computed.blocks, num_tokens)
        requests.append(Request(found[:num_tokens] + prompt(5), NUM_OUTPUTS, GREEDY, prefix=prefix))
    chooser.shuffle(requests)
    for request, swaps in zip(requests, _interruptions(chooser, len(requests)), strict=True):
        first = 1 if request.prefix is None else request.prefix.num_tokens
        last = len(request.prompt) + NUM_OUTPUTS - 3
        at = sorted(chooser.choices(range(first, last), k=len(swaps)))
        request.interruptions = [Interruption(*each) for each in zip(at, swaps, strict=True)]
    driver.run(*requests)
    for request in requests:
        assert request.error is None, request.error
    missing = driver.events.missing()
    assert not missing, f"these did not happen: {', '.join(missing)}"
    near_ties = NearTies()
    for request in requests:
        assert len(request.output) == NUM_OUTPUTS
        logits = reference_logits(reference, request.prompt + request.output[:-1])[len(request.prompt) - 1 :]
        near_ties.check_tokens(logits, request.output)
        expected = logits.log_softmax(-1).gather(1, torch.tensor(request.output)[:, None]).squeeze(1)
        differences = torch.tensor([logprob for logprob, _ in request.logprobs]) - expected
        assert differences.abs().max() < TOLERANCE, f"log probabilities differ by up to {differences.abs().max():g}"
    near_ties.report()
    return near_ties


def _interruptions(chooser: random.Random, count: int) -> list[tuple[bool, ...]]:
    """Returns for each request whether its preemptions are swaps."""
    every = [INTERRUPTED[index % len(INTERRUPTED)] for index in range(count)]
    return chooser.sample(every, count)
