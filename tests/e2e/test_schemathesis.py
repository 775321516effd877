"""Requests that Schemathesis makes up from our own document, with right bodies and with wrong ones, through Envoy: none
is a fault of the server's, none hangs, and every answer is in the document. `make schemathesis` sends over 5,000.

That a right body is answered 200 is not asked: a schema cannot say how long a context is or which tokens a model has."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from services.router.openapi.operation import Operation
from services.router.openapi.paths import OPERATIONS
from tests.e2e.conftest import Server

# Requests to each operation, for bodies that are right and for those that are wrong.
NUM_EXAMPLES = 12 * int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
TEXT = "Count from 3 to 9."
VARIED = [operation for operation in OPERATIONS if operation.body is not None or operation.parameters]
FIXED = [operation for operation in OPERATIONS if operation not in VARIED]
NUM_SENT: Counter[str] = Counter()


def answerable(body: Any) -> Any:
    """A right body, made one that the bundled model can answer, and soon; what else it says is kept."""
    body = dict(body)
    body["model"] = "quire-chat"
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": TEXT}]
        body.pop("prompt", None)
    elif "prompt" in body:
        body["prompt"] = TEXT
    body |= {name: [token % 900 for token in body[name]] for name in ("tokens", "stop_token_ids") if body.get(name)}
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            body[name] = body[name] % 8 + 1
    body |= {"max_tokens": 4} if "max_tokens" not in body else {}
    body |= {"n": body["n"] % 3 + 1, "best_of": None} if body.get("n") else {}
    body |= {"stream_options": None} if not body.get("stream") else {}
    body |= {"top_logprobs": None} if not body.get("logprobs") else {}
    return body | {"logit_bias": None}


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def send(case: Any) -> int:
    response = case.call(timeout=30)
    NUM_SENT[case.operation.label] += 1
    case.validate_response(response, checks=CHECKS)
    return int(response.status_code)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", VARIED, ids=lambda operation: operation.name)
def test_made_up_requests_are_answered_as_documented(document: Any, operation: Operation) -> None:
    described = document[operation.path][operation.verb]
    answered = []

    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(described.as_strategy(generation_mode=GenerationMode.POSITIVE), st.booleans())
    def right(case: Any, is_tamed: bool) -> None:
        if is_tamed and operation.body is not None:
            case.body = answerable(case.body)
        elif is_tamed:
            case.path_parameters = {"model": "quire-chat"}
        answered.append(send(case))

    right()
    assert 200 in answered
    if operation.body is None:
        return

    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(described.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def wrong(case: Any) -> None:
        send(case)

    wrong()


@pytest.mark.parametrize("operation", FIXED, ids=lambda operation: operation.name)
def test_what_takes_no_input_is_answered(document: Any, operation: Operation) -> None:
    assert send(document[operation.path][operation.verb].Case()) == 200


def test_as_many_were_sent_as_promised() -> None:
    """The last: it counts what those above it sent."""
    if NUM_EXAMPLES >= 500:
        assert NUM_SENT.total() >= 5_000, NUM_SENT
    else:
        assert NUM_SENT.total() >= 100 or len(NUM_SENT) < len(OPERATIONS), NUM_SENT
