"""Decoders that embed the last token, such as Qwen3-Embedding (Zhang et al., 2025), equal transformers in float32."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.models.case import Case
from tests.models.tiny import GQA, VOCAB_SIZE, save
from tests.unit.worker.tiny_encoders import embed_together, embeddings, hidden_states, normalized
from tests.unit.worker.tiny_models import make_runner

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("has_prefix", [True, False])
def test_embeddings_are_the_last_token_s(tmp_path: Path, has_prefix: bool) -> None:
    model = save(tmp_path, Case("qwen3", GQA | {"head_dim": 16, "tie_word_embeddings": True}))
    if not has_prefix:
        path = tmp_path / "model.safetensors"
        save_file({name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}, path)
    runner = make_runner(tmp_path)
    chooser = random.Random(5)
    prompts = [[chooser.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 2, 17, 64, 100)]
    vectors = embeddings(embed_together(runner, prompts))
    for prompt, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt)[-1]), atol=1e-5)
        assert np.array_equal(embeddings(embed_together(runner, [prompt]))[0], vector)
