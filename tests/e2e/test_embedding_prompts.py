"""Vectors for a purpose, and those without one, are sentence-transformers' own for the same model files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from quire import Client
from tests.e2e.conftest import Server, serving
from tests.e2e.test_embeddings import CHAT_MODEL, post
from tests.unit.worker.tiny_encoders import save_encoder, write_modules

TEXTS = ["Hello", "What is 7 plus 5?"]
PROMPTS = {
    "query": "Instruct: Find passages that answer the question.\nQuery: ",
    "document": "title: none | text: ",
    "Clustering": "task: clustering | query: ",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder with the bundled model's tokenizer and prompts, one of them the default."""
    directory = tmp_path_factory.mktemp("prompts")
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHAT_MODEL)
    save_encoder(directory, vocab_size=len(tokenizer), max_position_embeddings=256)
    write_modules(directory, {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 48}, "Normalize")
    modules = directory / "modules.json"
    modules.write_text(modules.read_text().replace("a.b.models.", "sentence_transformers.models."))
    config = {"prompts": PROMPTS, "default_prompt_name": "document"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    with serving(str(directory), "--served-model-name", "tiny", model="tiny") as running:
        yield running


def test_vectors_are_those_of_sentence_transformers(server: Server, directory: Path) -> None:
    library: Any = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(directory), device="cpu")

    def encoded(**options: Any) -> Any:
        # One at a time: the tokenizer has no token to pad a batch with.
        with torch.no_grad():
            return np.stack([model.encode(text, **options) for text in TEXTS])

    def served(**fields: Any) -> Any:
        return post(server, "/v2/embed", {"model": "tiny", "texts": TEXTS, **fields})["embeddings"]["float"]

    wanted = {
        "search_query": encoded(prompt_name="query"),
        "search_document": encoded(prompt_name="document"),
        "clustering": encoded(prompt_name="Clustering"),
        "classification": encoded(prompt=""),
    }
    for input_type, expected in wanted.items():
        np.testing.assert_allclose(served(input_type=input_type), expected, atol=1e-5)
    assert np.abs(wanted["search_query"] - wanted["search_document"]).max() > 0.01
    default = encoded()
    np.testing.assert_allclose(served(), default, atol=1e-5)
    reply = post(server, "/v1/embeddings", {"model": "tiny", "input": TEXTS})
    np.testing.assert_allclose([entry["embedding"] for entry in reply["data"]], default, atol=1e-5)
    reply = post(server, "/api/embed", {"model": "tiny", "input": TEXTS})
    np.testing.assert_allclose(reply["embeddings"], default, atol=1e-5)
    with Client(server.address) as typed:
        np.testing.assert_allclose(typed.embed(TEXTS).vectors, default, atol=1e-5)
        vectors = typed.embed(TEXTS, input_type="search_query").vectors
        np.testing.assert_allclose(vectors, wanted["search_query"], atol=1e-5)
