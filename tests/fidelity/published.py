"""Every answer on a path of OpenAI's has the schema that OpenAI publishes for it, where that document is there, and is
taken by the types of OpenAI's SDK without any conversion."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import openai.types as sdk
import openai.types.chat as sdk_chat
import pydantic

from tests.fidelity.answer import Answer
from tests.fidelity.document_check import DocumentCheck

DOCUMENT = Path(__file__).parents[2].parent / "shared" / "schema" / "openai-openapi.json"

# Where OpenAI's document is not what OpenAI's own servers do: the only places. An embedding that was asked for in
# base64, as the SDK does unasked, is a string, which no schema says. And it has one schema for a completion and
# for the events of a streamed one; but before a choice's last event its finish_reason is null, and with include_usage
# so is each usage before the last, as the schemas of chat's events say. The SDK's type was made from that schema.
NULL_IN_COMPLETION_EVENTS = (("choices", "finish_reason"), ("usage",))
_COMPLETION_EVENT = "CreateCompletionEvent"
_ERROR = {"$ref": "#/components/schemas/ErrorResponse"}

_SDK_TYPES: dict[tuple[str, bool], Any] = {
    ("/v1/chat/completions", False): sdk_chat.ChatCompletion,
    ("/v1/chat/completions", True): sdk_chat.ChatCompletionChunk,
    ("/v1/completions", False): sdk.Completion,
    ("/v1/completions", True): sdk.Completion,
}


def problems(answer: Answer) -> list[str]:
    return _schema_problems(answer) + _sdk_problems(answer)


def _schema_problems(answer: Answer) -> list[str]:
    check = _check()
    responses = None if check is None else check.responses(answer)
    if check is None or responses is None:
        return []
    if answer.status >= 400:
        schema = _ERROR  # which it gives for none of its paths
    else:
        content = responses[str(answer.status)]["content"]
        if answer.media_type in content:
            schema = content[answer.media_type]["schema"]
        else:
            assert answer.path == "/v1/completions"
            schema = {"$ref": f"#/components/schemas/{_COMPLETION_EVENT}"}
    return [f"OpenAI's schema: {problem}" for problem in check.problems(answer, schema, _ERROR)]


def _sdk_problems(answer: Answer) -> list[str]:
    kind = _SDK_TYPES.get((answer.path, answer.is_stream))
    if kind is None or answer.status >= 400:
        return []
    found = []
    for value in map(json.loads, answer.json_values):
        if "error" in value:
            continue
        try:
            kind.model_validate(value, strict=True)
        except pydantic.ValidationError as error:
            found += [
                f"the SDK: {answer.path}: {detail['loc']}: {detail['msg']}"
                for detail in error.errors()
                if not (answer.is_stream and kind is sdk.Completion and _is_excused(detail))
            ]
    return found


def _is_excused(detail: Any) -> bool:
    place = tuple(part for part in detail["loc"] if isinstance(part, str))
    return detail["input"] is None and place in NULL_IN_COMPLETION_EVENTS


@cache
def _check() -> DocumentCheck | None:
    if not DOCUMENT.exists():
        return None
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    event = copy.deepcopy(schemas["CreateCompletionResponse"])
    for *parents, name in NULL_IN_COMPLETION_EVENTS:
        owner = event
        for parent in parents:
            owner = owner["properties"][parent]["items"]
        owner["properties"][name] = {"anyOf": [owner["properties"][name], {"type": "null"}]}
    schemas[_COMPLETION_EVENT] = event
    embedding = schemas["Embedding"]["properties"]
    embedding["embedding"] = {"anyOf": [embedding["embedding"], {"type": "string"}]}
    return DocumentCheck(_with_null(document), prefix="/v1")


def _with_null(schema: Any) -> Any:
    """`nullable`, OpenAPI 3.0's word that the document still uses, in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _with_null(value) for key, value in schema.items()}
    return {"anyOf": [converted, {"type": "null"}]} if schema.get("nullable") is True else converted
