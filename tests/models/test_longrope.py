"""LongRoPE (Ding et al., 2024): one set of frequencies for contexts of the original length, and one for longer ones.

The longest sequence that is served chooses the set. transformers chooses by the longest sequence of a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.worker.implementations import Implementation
from tests.models.case import Case
from tests.models.tiny import GQA, save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

ORIGINAL = 64
NUM_OUTPUTS = 12


def rope(num_pairs: int, **others: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0 + 0.2 * pair for pair in range(num_pairs)],
        "long_factor": [1.0 + 1.7 * pair for pair in range(num_pairs)],
        "original_max_position_embeddings": ORIGINAL,
        **others,
    }


def case(implementation: Implementation, num_pairs: int = 8, **others: Any) -> Case:
    options = {"original_max_position_embeddings": ORIGINAL, "rope_parameters": rope(num_pairs, **others)}
    return Case("phi3", options, implementation=implementation)


CASES = {
    "Quire's code": case("native"),
    "Quire's code, a part of each head": case("native", 6, partial_rotary_factor=0.75),
    "Quire's code, a factor of its own": case("native", attention_factor=1.4),
    "transformers' code": case("transformers"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("length", "served"), [(ORIGINAL - NUM_OUTPUTS, ORIGINAL), (ORIGINAL + 20, None)])
def test_the_longest_sequence_that_is_served_chooses_the_frequencies(
    name: str, length: int, served: int | None, tmp_path: Path
) -> None:
    reference = save(tmp_path, CASES[name])
    runner = make_runner(tmp_path, implementation=CASES[name].implementation, max_model_len=served)
    request = Request([3 + position % 190 for position in range(length)], NUM_OUTPUTS)
    Driver(runner, seed=0, max_chunk=16).run(request)
    near_ties = NearTies()
    near_ties.check(reference, request.prompt, request.output)
    near_ties.report()


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_a_token_does_not_depend_on_longer_sequences_beside_it(implementation: Implementation, tmp_path: Path) -> None:
    save(tmp_path, case(implementation))
    outputs = []
    for others in ([], [Request(list(range(3, 90)), NUM_OUTPUTS)]):
        request = Request([5, 60, 7, 100], NUM_OUTPUTS)
        Driver(make_runner(tmp_path, implementation=implementation), seed=0).run(request, *others)
        assert len(request.output) == NUM_OUTPUTS, request.error
        outputs.append(request.output)
    assert outputs[0] == outputs[1]


def test_experts_of_phi_have_a_scale_for_each_set(tmp_path: Path) -> None:
    scales = {"short_mscale": 1.3, "long_mscale": 1.1}
    options = {"rope_parameters": rope(8, **scales), "original_max_position_embeddings": ORIGINAL}
    reference = save(tmp_path, Case("phimoe", options | GQA | {"num_local_experts": 4}))
    request = Request(list(range(3, 33)), NUM_OUTPUTS)
    Driver(make_runner(tmp_path, max_model_len=ORIGINAL), seed=0).run(request)
    near_ties = NearTies()
    near_ties.check(reference, request.prompt, request.output)
    near_ties.report()
