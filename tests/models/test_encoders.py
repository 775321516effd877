"""Embeddings equal transformers' in float32, for each encoder, and have the same bits alone and in a batch."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.models.case import Case, chosen
from tests.models.encoder_cases import CASES
from tests.models.tiny import VOCAB_SIZE, save_encoder
from tests.unit.worker.tiny_encoders import (
    embed_together,
    embeddings,
    hidden_states,
    make_encoder_runner,
    normalized,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", chosen(CASES), ids=str)
def test_embeddings_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, case)
    runner = make_encoder_runner(tmp_path, pooling_type="mean")
    chooser = random.Random(str(case))
    prompts = [[chooser.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 2, 17, 64, 65, 100)]
    vectors = embeddings(embed_together(runner, prompts))
    for prompt, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)
        assert np.array_equal(embeddings(embed_together(runner, [prompt]))[0], vector)
