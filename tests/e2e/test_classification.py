"""Classifiers and cross-encoders through the whole stack equal transformers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors

from quire import Client
from services.router.http.operation import Example, Operation
from services.router.openapi.paths import OPERATIONS
from tests.e2e.conftest import ROOT, Server, serving
from tests.fakes.waiting import HANG_S
from tests.unit.worker.tiny_encoders import save_encoder

CHAT_MODEL = ROOT / "quire" / "models" / "quire-chat"
QUERY = "What is 7 plus 5?"
TEXTS = ["Hello", "The sum is twelve.", "It rains in Bonn, and it has rained for a week."]


def save_classifier(directory: Path, **config: Any) -> tuple[Any, Any]:
    """A random one, with the bundled model's tokens. Returns transformers' model and tokenizer."""
    library = Tokenizer.from_file(str(CHAT_MODEL / "tokenizer.json"))
    first, last = library.id_to_token(0), library.id_to_token(1)
    library.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1", special_tokens=[(first, 0), (last, 1)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library)
    tokenizer.save_pretrained(directory)
    model = save_encoder(
        directory, "BertForSequenceClassification", vocab_size=len(tokenizer), max_position_embeddings=256, **config
    )
    return model, tokenizer


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any, Any]]:
    directory = tmp_path_factory.mktemp("reranker")
    model, tokenizer = save_classifier(directory, num_labels=1)
    with serving(str(directory), "--served-model-name", "tiny", model="tiny") as running:
        yield running, model, tokenizer


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as reply:
        return json.loads(reply.read())


def outputs(model: Any, tokenizer: Any, *texts: str) -> torch.Tensor:
    encoded = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        result: torch.Tensor = model(**encoded).logits[0]
    return result


def test_a_cross_encoder_scores_and_ranks_as_transformers_does(reranker: tuple[Server, Any, Any]) -> None:
    server, model, tokenizer = reranker
    expected = [torch.sigmoid(outputs(model, tokenizer, QUERY, text))[0].item() for text in TEXTS]
    assert max(expected) - min(expected) > 0.01
    for path in ("/v1/score", "/score"):
        scores = post(server, path, {"model": "tiny", "text_1": QUERY, "text_2": TEXTS})["data"]
        assert [entry["score"] for entry in scores] == pytest.approx(expected, abs=1e-5)
    raw = post(server, "/score", {"text_1": QUERY, "text_2": TEXTS, "use_activation": False})["data"]
    logits = [outputs(model, tokenizer, QUERY, text)[0].item() for text in TEXTS]
    assert [entry["score"] for entry in raw] == pytest.approx(logits, abs=1e-5)
    best = sorted(range(3), key=lambda index: -expected[index])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        ranks = post(server, path, {"model": "tiny", "query": QUERY, "documents": TEXTS})["results"]
        assert [entry["index"] for entry in ranks] == best
    with Client(server.address) as typed:
        assert list(typed.score(QUERY, TEXTS).scores) == pytest.approx(expected, abs=1e-5)


def test_one_label_has_its_probability(reranker: tuple[Server, Any, Any]) -> None:
    server, model, tokenizer = reranker
    [entry] = post(server, "/classify", {"input": QUERY})["data"]
    assert entry["probs"] == pytest.approx([torch.sigmoid(outputs(model, tokenizer, QUERY))[0].item()], abs=1e-5)
    assert (entry["label"], entry["num_classes"]) == ("LABEL_0", 1)


@pytest.mark.parametrize(
    ("operation", "example"),
    [(one, example) for one in OPERATIONS if one.name.startswith("createClassification") for example in one.examples],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_example_is_answered(reranker: tuple[Server, Any, Any], operation: Operation, example: Example) -> None:
    assert post(reranker[0], operation.path, {**operation.body_of(example), "model": "tiny"})["data"]


def test_a_cross_encoder_refuses_other_requests(reranker: tuple[Server, Any, Any]) -> None:
    server = reranker[0]
    for path, body in (
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server, path, {"model": "tiny", **body})
        assert caught.value.code == 400
        assert "classifier" in json.loads(caught.value.read())["error"]["message"]


def test_labels_have_the_probabilities_of_transformers(tmp_path: Path) -> None:
    names = {0: "bad", 1: "good", 2: "unclear"}
    model, tokenizer = save_classifier(tmp_path, id2label=names)
    with serving(str(tmp_path), "--served-model-name", "tiny", model="tiny") as server:
        for path in ("/classify", "/v1/classify"):
            reply = post(server, path, {"model": "tiny", "input": TEXTS})
            for text, entry in zip(TEXTS, reply["data"], strict=True):
                probs = outputs(model, tokenizer, text).softmax(-1)
                assert entry["probs"] == pytest.approx(probs.tolist(), abs=1e-5)
                assert (entry["label"], entry["num_classes"]) == (names[int(probs.argmax())], 3)
        ids = tokenizer(TEXTS[0]).input_ids
        assert post(server, "/invocations", {"input": ids})["data"][0] == reply["data"][0]
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server, "/v1/rerank", {"query": QUERY, "documents": TEXTS})
        assert "3 labels" in json.loads(caught.value.read())["error"]["message"]
