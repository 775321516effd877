"""InferenceService as JSON: answers and errors of every method, from the whole stack."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from quire.inference.v1 import inference_pb2
from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
# A request of each method that has an answer.
ANSWERABLE: dict[str, dict[str, Any]] = {
    "Generate": {"text": "One, two,", "options": {"stop": {"maxTokens": 2}}},
    "Chat": {"messages": [{"role": "user", "content": "Hi"}], "options": {"stop": {"maxTokens": 2}}},
    "Embed": {"inputs": [{"text": "Hello"}]},
    "Score": {"text1": ["Hello"], "text2": ["Hello"]},
    "Tokenize": {"text": "Hello"},
    "Detokenize": {"tokenIds": [300, 301]},
    "ListModels": {},
}


def ask(server: Server, method: str, body: dict[str, Any]) -> tuple[int, Any, Any]:
    """The status, the JSON and the headers."""
    request = urllib.request.Request(
        f"{server.url}/{SERVICE.full_name}/{method}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_every_method_answers_and_fails_in_json(server: Server, method: str) -> None:
    status, answer, headers = ask(server, method, ANSWERABLE[method])
    assert (status, headers["content-type"]) == (200, "application/json"), answer
    assert answer
    if "model" in SERVICE.methods_by_name[method].input_type.fields_by_name:
        status, answer, headers = ask(server, method, ANSWERABLE[method] | {"model": "none"})
        assert (status, headers["content-type"]) == (404, "application/json")
        assert (answer["error"]["param"], answer["error"]["code"]) == ("model", "model_not_found")


def test_as_many_numbers_are_taken_as_over_grpc(server: Server) -> None:
    """Envoy gives each of them a tag."""
    status, answer, _ = ask(server, "Detokenize", {"tokenIds": [300] * 200_000})
    assert status == 200
    assert answer["text"]
