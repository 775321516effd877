"""Structured output through the whole stack, with the openai SDK: what comes back is what was asked for."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import Server

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about a person."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
AS_PERSON: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def check_person(text: str) -> None:
    jsonschema.Draft202012Validator(PERSON).validate(json.loads(text))


def test_every_choice_matches_the_schema(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=ASK, response_format=AS_PERSON, n=3, temperature=1.5, max_tokens=300, seed=4,
        logprobs=True,
    )  # fmt: skip
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    for choice in answer.choices:
        check_person(choice.message.content or "")
        assert choice.logprobs is not None


def test_a_stream_says_the_same(client: openai.OpenAI, server: Server) -> None:
    asked: Any = {"model": server.model, "messages": ASK, "response_format": AS_PERSON, "seed": 4, "max_tokens": 300}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    check_person(text)


def test_many_at_once_each_have_their_own(client: openai.OpenAI, server: Server) -> None:
    def ask(number: int) -> None:
        body: dict[str, Any] = {"seed": number}
        if number % 4 == 0:
            body["guided_regex"] = f"[a-f]{{{number + 1}}}!"
        elif number % 4 == 1:
            body["structured_outputs"] = {"choice": [f"it is {number}", f"it is not {number}"]}
        elif number % 4 == 2:
            body["guided_grammar"] = f'root ::= "{number}" ("," root)?'
        answer = client.completions.create(model=server.model, prompt="So", max_tokens=200, extra_body=body)
        choice = answer.choices[0]
        if number % 4 == 3 or choice.finish_reason == "length":
            return
        pattern = (rf"[a-f]{{{number + 1}}}!", rf"it is (not )?{number}", rf"{number}(,{number})*")[number % 4]
        assert re.fullmatch(pattern, choice.text), choice.text

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(ask, range(24)))


def test_stop_strings_and_least_lengths_hold_beside_a_structure(client: openai.OpenAI, server: Server) -> None:
    body: dict[str, Any] = {"guided_regex": "a{40}b", "min_tokens": 12}
    answer = client.completions.create(model=server.model, prompt="x", max_tokens=99, stop="aa", extra_body=body)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 12
    assert set(answer.choices[0].text) == {"a"}


def test_a_schema_that_cannot_be_enforced_is_refused(client: openai.OpenAI, server: Server) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "integer"}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=server.model, messages=ASK, response_format=schema)
    assert caught.value.param == "response_format.json_schema.schema"
    assert "not" in caught.value.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_choice": ["a"], "allowed_token_ids": [7]}, "guided_choice"),
        ({"guided_regex": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"}, "guided_regex"),
        ({"allowed_token_ids": [65], "stop_token_ids": [65], "min_tokens": 3}, "allowed_token_ids"),
    ],
)
def test_what_leaves_no_token_to_draw_is_the_requests_own_error(
    client: openai.OpenAI, server: Server, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=server.model, messages=ASK, extra_body=body)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def test_a_stream_in_which_nothing_is_left_to_draw_ends_with_the_requests_own_error(
    client: openai.OpenAI, server: Server
) -> None:
    other_paths = client.with_options(base_url=server.url)
    tokens: list[int] = []
    for text in ("a", "b", "ab"):
        tokens += other_paths.post("/tokenize", body={"prompt": text}, cast_to=dict[str, Any])["tokens"]
    body = {"guided_regex": "ab[c-z]", "allowed_token_ids": tokens}
    stream = client.chat.completions.create(model=server.model, messages=ASK, extra_body=body, stream=True)
    with pytest.raises(openai.APIError) as refused:
        list(stream)
    assert refused.value.param == "guided_regex"
    assert refused.value.type == "invalid_request_error"
