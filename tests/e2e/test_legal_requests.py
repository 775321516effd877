"""Requests whose every field is legal by itself, several at once: each is answered, or refused as the request's own
error. What is written where nobody thought of the combination is a fault of the server's, and there is none.
"""

from __future__ import annotations

import http.client
import json
import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S

NUM_EXAMPLES = 60 * int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
TOOL = {
    "type": "function",
    "function": {"name": "pick", "parameters": {"type": "object", "properties": {"of": {"enum": ["a", "b"]}}}},
}
STRUCTURES: list[dict[str, Any]] = [
    {"guided_choice": ["a", "bb"]},
    {"guided_regex": "[a-z]+"},
    {"guided_regex": r"\d{3}"},
    # Taken at the door; its first mask over a model's tokens is more than its fuel.
    {"guided_regex": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"},
    {"guided_json": {"type": "boolean"}},
    {"response_format": {"type": "json_object"}},
    {"guided_grammar": 'root ::= "x"+'},
    {"structured_outputs": {"choice": ["é😀"]}},
]
# By field, values that each are legal; the tokens are some of the bundled model's.
SHARED: dict[str, list[Any]] = {
    "allowed_token_ids": [[5], [0], list(range(20)), list(range(1000)), [1, 1]],
    "bad_words": [["a"], ["yes", " the"], ['"'], ["{"]],
    "min_tokens": [0, 1, 5],
    "max_tokens": [1, 8],
    "stop": ["a", ['"', "x"], ["}"]],
    "stop_token_ids": [[1], [0], [24]],
    "include_stop_str_in_output": [True],
    "ignore_eos": [True],
    "logit_bias": [{"5": 100}, {"1": -100}, {"1": 100}],
    "n": [2, 3],
    "seed": [1],
    "temperature": [0, 2],
    "top_k": [1, 5],
    "top_p": [1e-9, 0.1],
    "min_p": [0.5, 1],
    "repetition_penalty": [0.01, 2],
    "presence_penalty": [-2, 2],
    "skip_special_tokens": [False],
    "return_token_ids": [True],
    "prompt_logprobs": [0, 3],
    "truncate_prompt_tokens": [1],
    "cache_salt": ["x"],
    "stream": [True],
}
OF_CHATS: dict[str, list[Any]] = {
    "logprobs": [True],
    "tools": [[TOOL]],
    "tool_choice": ["required", "none", {"type": "function", "function": {"name": "pick"}}],
    "add_generation_prompt": [False],
    "reasoning_effort": ["none"],
}
OF_COMPLETIONS: dict[str, list[Any]] = {
    "prompt": ["Once", ["a", "b"], [5, 6]],
    "logprobs": [0, 2],
    "echo": [True],
    "best_of": [3],
}


def bodies(base: dict[str, Any], values: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.fixed_dictionaries({}, optional={name: st.sampled_from(of) for name, of in values.items()})
    structures = st.one_of(st.just(dict[str, Any]()), st.sampled_from(STRUCTURES))
    return st.builds(lambda chosen, structure: base | chosen | structure, fields, structures)


PATHS = {
    "/v1/chat/completions": bodies(
        {"messages": [{"role": "user", "content": "What is 7 plus 5?"}], "max_tokens": 8}, SHARED | OF_CHATS
    ),
    "/v1/completions": bodies({"prompt": "Once", "max_tokens": 8}, SHARED | OF_COMPLETIONS),
}


def ask(server: Server, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", PATHS)
def test_no_combination_of_legal_fields_is_a_fault_of_the_server(server: Server, path: str) -> None:
    """That every answer is as documented is looked at on its way (tests/fidelity)."""
    statuses = Counter[int]()

    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(PATHS[path])
    def check(body: dict[str, Any]) -> None:
        status, text = ask(server, path, body)
        statuses[status] += 1
        assert status in (200, 400), text
        if '"error"' in text:
            assert '"type":"invalid_request_error"' in text.replace(": ", ":"), text

    check()
    assert statuses[200] > NUM_EXAMPLES / 4, statuses
