"""Embeddings through the whole stack: an encoder found out by itself, and a decoder that chats meanwhile."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers

from quire import Client
from tests.e2e.conftest import ROOT, Server, serving
from tests.fakes.waiting import HANG_S
from tests.unit.worker.tiny_encoders import hidden_states, normalized, save_encoder, write_modules

TEXTS = ["Hello", "What is 7 plus 5?", "Hello"]
CHAT_MODEL = ROOT / "quire" / "models" / "quire-chat"


@pytest.fixture(scope="module")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one, with the bundled model's tokenizer."""
    directory = tmp_path_factory.mktemp("encoder")
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHAT_MODEL)
    save_encoder(directory, vocab_size=len(tokenizer), max_position_embeddings=1024)
    write_modules(directory, {"pooling_mode_mean_tokens": True}, "Normalize")
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def encoder(encoder_directory: Path) -> Iterator[Server]:
    with serving(str(encoder_directory), "--served-model-name", "tiny", model="tiny") as running:
        yield running


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as reply:
        return json.loads(reply.read())


def test_an_encoder_s_vectors_are_transformers_as_floats_and_as_base64(
    encoder: Server, encoder_directory: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder_directory)
    model = transformers.AutoModel.from_pretrained(encoder_directory).eval()
    # The SDK asks for base64 where it is not told, and decodes it.
    embed = client(encoder).embeddings.create
    replies = [embed(model="tiny", input=TEXTS), embed(model="tiny", input=TEXTS, encoding_format="float")]
    for reply in replies:
        for text, entry in zip(TEXTS, reply.data, strict=True):
            ids = tokenizer(text).input_ids
            np.testing.assert_allclose(entry.embedding, normalized(hidden_states(model, ids).mean(0)), atol=1e-5)
    with Client(encoder.address) as typed:
        assert typed.embed(TEXTS).vectors[1] == pytest.approx(replies[1].data[1].embedding, abs=1e-7)


def test_an_encoder_takes_long_inputs_whole(encoder: Server, encoder_directory: Path) -> None:
    """After short ones, too, whose steps tell little of how long a long one takes. No step cuts them to meet a time."""
    model = transformers.AutoModel.from_pretrained(encoder_directory).eval()
    post(encoder, "/v1/embeddings", {"model": "tiny", "input": [[10]] * 20})
    long = [[20 + (place * number) % 400 for place in range(1000)] for number in range(1, 9)]
    reply = client(encoder).embeddings.create(model="tiny", input=long)
    for ids, entry in zip(long, reply.data, strict=True):
        np.testing.assert_allclose(entry.embedding, normalized(hidden_states(model, ids).mean(0)), atol=1e-5)


def test_an_encoder_says_that_it_does_not_chat(encoder: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client(encoder).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}])
    assert caught.value.param == "model"
    assert "encoder" in caught.value.message


def test_scores_and_ranks_come_under_each_of_vllm_s_paths(encoder: Server) -> None:
    for prefix in ("/v1", ""):
        scores = post(encoder, f"{prefix}/score", {"text_1": "Hello", "text_2": TEXTS})["data"]
        assert [round(entry["score"], 5) for entry in scores][::2] == [1.0, 1.0]
    for prefix in ("/v1", "", "/v2"):
        ranks = post(encoder, f"{prefix}/rerank", {"query": "Hello", "documents": TEXTS, "top_n": 1})["results"]
        assert [(entry["index"], entry["document"]["text"]) for entry in ranks] == [(0, "Hello")]


def test_a_decoder_embeds_while_it_chats(server: Server) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(CHAT_MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHAT_MODEL)
    answers: list[str] = []

    def chat() -> None:
        reply = client(server).chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": "Count from 3 to 9."}], temperature=0
        )
        answers.append(reply.choices[0].message.content or "")

    threads = [threading.Thread(target=chat) for _ in range(4)]
    for thread in threads:
        thread.start()
    reply = client(server).embeddings.create(model=server.model, input=TEXTS * 20, encoding_format="float")
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    for text, entry in zip(TEXTS, reply.data[:3], strict=True):
        expected = normalized(hidden_states(model, tokenizer(text).input_ids)[-1])
        np.testing.assert_allclose(entry.embedding, expected, atol=1e-5)
    assert reply.data[0].embedding == reply.data[-1].embedding
