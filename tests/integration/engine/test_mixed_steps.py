"""Masks, prompts' log probabilities and pooling in one and the same step, with chunks, run-ahead and preemption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.worker.pooling.config import PoolingKind
from tests.integration.engine.mixed import MixedEngine
from tests.integration.engine.test_embeddings_with_model import make_runner
from tests.unit.worker.tiny_models import save_model


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
def test_every_kind_of_sequence_is_transformers_own_in_steps_that_hold_all_of_them(
    tmp_path: Path, kind: PoolingKind
) -> None:
    model = save_model(tmp_path, "Llama", seed=3)
    engine = MixedEngine(make_runner(tmp_path, kind), kind)
    engine.submit_some(32, seed=8, longest_prompt=70, longest_output=30)
    engine.run()
    assert engine.core.counters.preemptions > 0, "blocks were to run out"
    computed = [step.computed for step in engine.steps]
    assert any(all((part.sample, part.prompt, part.pooled)) for part in computed), "no step held all of them"
    engine.check(model)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
def test_each_has_the_same_bits_alone(tmp_path: Path, kind: PoolingKind) -> None:
    save_model(tmp_path, "Llama", seed=3)
    runner = make_runner(tmp_path, kind)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    crowd = MixedEngine(runner, kind)
    crowd.submit_some(16, seed=9, longest_prompt=60, longest_output=20)
    crowd.run()
    for key, prompt in crowd.prompts.items():
        runner.reset()
        alone = MixedEngine(runner, kind)
        alone.submit(key, prompt, len(crowd.outputs[key]))
        alone.run()
        assert (alone.outputs[key], alone.logprobs[key]) == (crowd.outputs[key], crowd.logprobs[key])
        assert key % 4 != 3 or np.array_equal(alone.vectors[key], crowd.vectors[key])
