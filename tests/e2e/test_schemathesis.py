"""Requests that Schemathesis makes up from our own document, with right bodies and with wrong ones, through Envoy: none
is a fault of the server's, none hangs, and every answer is in the document. `make schemathesis` sends over 5,000.

That a right body is answered 200 is not asked: a schema cannot say how long a context is, or which tokens there are."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
import schemathesis
from google.protobuf.descriptor import Descriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from services.router.apis.openai.structure_fields import StructureFields
from services.router.http.operation import Operation
from services.router.openapi.paths import OPERATIONS
from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S

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
CONVERSATION = [{"role": "user", "content": TEXT}]
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
# Each text has two names, and a request uses the names of one pair.
SCORED = {"text_1": TEXT, "text_2": [TEXT, TEXT], "queries": None, "documents": None}
RANKED = {"query": TEXT, "documents": [TEXT, TEXT]}
# By path, what a body is made answerable by, over what all of them are.
EASY: dict[str, dict[str, Any]] = {
    "/v1/score": SCORED,
    "/score": SCORED,
    "/v1/rerank": RANKED,
    "/rerank": RANKED,
    "/v2/rerank": RANKED,
    "/v1/embeddings": {"input": TEXT, "messages": None, "dimensions": None},
    "/v2/embed": {"texts": [TEXT], "inputs": None, "input_type": "search_query", "output_dimension": None},
    "/api/embed": {"input": TEXT, "dimensions": None, "options": {}},
    "/v1/responses/input_tokens": {"input": TEXT, "text": None, "tool_choice": None},
    "/v1/chat/completions": {"messages": CONVERSATION},
    "/v1/chat/completions/batch": {
        "messages": [CONVERSATION] * 2, "n": None, "prompt_logprobs": None, "stream": None, "stream_options": None,
        "tool_choice": None, "tools": None,
    },
    "/v1/completions": {"prompt": TEXT},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 8, "text": None, "tool_choice": None},
    "/v1/messages": {"messages": CONVERSATION, "system": None, "thinking": None, "tool_choice": None},
    "/v1/messages/count_tokens": {"messages": CONVERSATION, "system": None, "thinking": None, "tool_choice": None},
    "/api/chat": {"messages": CONVERSATION, "options": {"num_predict": 8}, "format": None},
    "/api/generate": {
        "prompt": TEXT, "options": {"num_predict": 8}, "format": None, "system": None, "template": None,
        "context": None, "suffix": None, "images": None,
    },
    "/tokenize": {"messages": CONVERSATION, "prompt": None},
    "/v2/models/{model}/generate": {"text_input": TEXT, "parameters": {"max_tokens": 8}},
    "/v2/models/{model}/generate_stream": {"text_input": TEXT, "parameters": {"max_tokens": 8}},
    "/v2/models/{model}/infer": {
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [TEXT]}],
        "outputs": [], "parameters": {"max_tokens": 8},
    },
}  # fmt: skip
# The bundled model is no classifier.
REFUSED = {"/classify": 400, "/v1/classify": 400}
# Tools in each API's words.
TOOLS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"type": "function", **ADD},
    "/v1/messages": {"name": "add", "input_schema": ADD["parameters"]},
    "/v1/messages/count_tokens": {"name": "add", "input_schema": ADD["parameters"]},
}
# An output has one structure at most, and one for tools is another.
STRUCTURES = [name for name in StructureFields.model_fields if name != "guided_choice"]
# Protobuf's JSON takes more than its schema says (numbers in strings, null for any field), and drops unknown fields.
# The typed API is tested by its messages.
TESTED = [operation for operation in OPERATIONS if not isinstance(operation.body, Descriptor)]
VARIED = [operation for operation in TESTED if operation.body is not None or operation.parameters]
FIXED = [operation for operation in TESTED if operation not in VARIED]
NUM_SENT: Counter[str] = Counter()


def answerable(body: Any, operation: Operation) -> Any:
    """A right body, made one that the bundled model can answer, and soon; what else it says is kept."""
    assert isinstance(operation.body, type)
    names = operation.body.model_fields
    easy: dict[str, Any] = {"model": "quire-chat", "logit_bias": None, "best_of": None, "chat_template": None}
    easy |= dict.fromkeys(STRUCTURES)
    if body.get("tools"):
        easy |= {"tools": [TOOLS.get(operation.path, {"type": "function", "function": ADD})], "guided_choice": None}
    if not isinstance(body.get("tool_choice"), str) or not body.get("tools"):
        easy["tool_choice"] = None
    for name in ("tokens", "stop_token_ids"):
        easy[name] = [token % 900 for token in (body.get(name) or [])]
    for name, most in (("max_tokens", 8), ("max_completion_tokens", 8), ("n", 3)):
        easy[name] = (body.get(name) or 1) % most + 1 if name in names else None
    if not body.get("stream"):
        easy["stream_options"] = None
    if not body.get("logprobs"):
        easy["top_logprobs"] = None
    easy |= EASY.get(operation.path, {})
    return {**body, **{name: value for name, value in easy.items() if name in names}}


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def send(case: Any) -> int:
    response = case.call(timeout=HANG_S)
    NUM_SENT[case.operation.label] += 1
    # Events are checked one by one on their way (tests/fidelity): Schemathesis looks for JSON in OpenAPI 3.2's form.
    is_stream = response.headers["content-type"][0].startswith(("text/event-stream", "application/x-ndjson"))
    left_out = {checks.response_schema_conformance} if is_stream else set()
    # A body past the gateway's limit is refused as such, whatever is in it.
    left_out |= {checks.negative_data_rejection} if response.status_code == 413 else set()
    case.validate_response(response, checks=[check for check in CHECKS if check not in left_out])
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
            case.body = answerable(case.body, operation)
        if is_tamed:
            case.path_parameters = dict.fromkeys(operation.parameters, "quire-chat")
        answered.append(send(case))

    right()
    refused = 404 if operation.is_always_missing else REFUSED.get(operation.path)
    assert (refused or 200) in answered
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
    if len(NUM_SENT) < len(TESTED):
        pytest.skip("not all of them ran")
    assert NUM_SENT.total() >= (5_000 if NUM_EXAMPLES >= 300 else 100), NUM_SENT
