"""Decoders that embed the last token, such as Qwen3-Embedding (Zhang et al., 2025), equal transformers in float32."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.pooling.config import PoolingKind, read_pooling
from tests.models.case import Case, chosen
from tests.models.tiny import EXPERTS, GQA, VOCAB_SIZE, save, save_encoder
from tests.unit.worker.tiny_encoders import embed_together, embeddings, hidden_states, normalized, write_modules
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


# Their `architectures` name the model without its output layer, and their tensors have no prefix: E5-Mistral, SFR-
# Embedding, and what sentence-transformers saves.
BARE = [
    Case("mistral", GQA | {"sliding_window": 20}, mechanism="a decoder without output layer"),
    Case("qwen3", GQA | {"head_dim": 16}),
    Case("qwen2", GQA),
    Case("llama", GQA),
    Case("gemma", GQA | {"head_dim": 16}),
    Case("gemma2", GQA | {"head_dim": 16, "sliding_window": 20}),
    Case("phi3", GQA),
    Case("mixtral", GQA | {"num_local_experts": 6}),
    Case("qwen3_moe", GQA | EXPERTS | {"head_dim": 16}),
]


@pytest.mark.parametrize("case", chosen(BARE), ids=str)
def test_decoders_without_output_layer_embed(case: Case, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, case)
    assert not read_model_config(tmp_path).generates
    chooser = random.Random(6)
    prompts = [[chooser.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 2, 17, 64, 100)]
    for pooling in (PoolingKind.LAST, PoolingKind.MEAN):
        vectors = embeddings(embed_together(make_runner(tmp_path, pooling=pooling), prompts))
        for prompt, vector in zip(prompts, vectors, strict=True):
            states = hidden_states(model, prompt)
            expected = states[-1] if pooling is PoolingKind.LAST else states.mean(0)
            np.testing.assert_allclose(vector, normalized(expected), atol=1e-5)


def test_sentence_transformers_files_decide_how_a_decoder_pools(tmp_path: Path) -> None:
    write_modules(tmp_path, {"pooling_mode_lasttoken": True, "include_prompt": True})
    assert read_pooling(tmp_path, "auto", PoolingKind.MEAN).kind is PoolingKind.LAST
    assert not read_pooling(tmp_path, "auto", PoolingKind.MEAN).normalize


def test_a_decoder_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, Case("qwen2", GQA))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_causal": False}))
    with pytest.raises(ModelError, match="sets is_causal to false, which is not supported"):
        read_model_config(tmp_path)
