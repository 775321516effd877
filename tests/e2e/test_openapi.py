"""/openapi.json and /docs through Envoy; what the document gives as examples is answered."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from services.router.http.operation import Example, Operation
from services.router.openapi.paths import OPERATIONS
from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S
from tests.fidelity.own_document import DOCUMENT

EXAMPLES = [
    (operation, example)
    for operation in OPERATIONS
    for example in operation.examples
    if not operation.name.startswith("createClassification")  # test_classification.py asks a classifier
]


def ask(server: Server, verb: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
    connection.request(verb, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    connection.close()
    return answer


def test_the_document_is_served_and_may_be_cached(server: Server) -> None:
    status, headers, body = ask(server, "GET", "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert headers["cache-control"] == "public, max-age=300"
    served = json.loads(body)
    assert served.pop("info")["title"] == "Quire"
    assert served == {name: part for name, part in DOCUMENT.items() if name != "info"}


def test_the_page_is_served(server: Server) -> None:
    status, headers, body = ask(server, "GET", "/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["cache-control"] == "public, max-age=300"
    assert b"/v1/chat/completions" in body


@pytest.mark.parametrize(
    ("operation", "example"), EXAMPLES, ids=[f"{one.name}: {example.summary}" for one, example in EXAMPLES]
)
def test_every_example_is_answered(server: Server, operation: Operation, example: Example) -> None:
    sent = None if operation.body is None else operation.body_of(example)
    status, _, body = ask(server, operation.verb, operation.path_of(example), sent)
    assert status == 200, body


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_another_verb_is_refused(server: Server, operation: Operation) -> None:
    status, headers, _ = ask(server, "PUT", operation.path.format(**dict.fromkeys(operation.parameters, "quire-chat")))
    assert status == 405
    assert operation.verb in headers["allow"].split(", ")
