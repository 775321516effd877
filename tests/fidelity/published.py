"""Every answer on a path of OpenAI's has the schema that OpenAI publishes for it, where that document is there, and is
taken by the types of OpenAI's SDK without any conversion."""

from __future__ import annotations

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

_USAGE_OR_NULL = {"anyOf": [{"$ref": "#/components/schemas/CompletionUsage"}, {"type": "null"}]}
# Where OpenAI's document is not what OpenAI's own servers do: the schema, the property, what holds instead, and why.
CORRECTIONS: list[tuple[str, str, Any, str]] = [
    (
        "CreateCompletionResponse", "usage", _USAGE_OR_NULL,
        "with include_usage, each chunk before the last has a usage of null, as the document says of chat alone",
    ),
]  # fmt: skip

_SDK_TYPES: dict[tuple[str, bool], Any] = {
    ("/v1/chat/completions", False): sdk_chat.ChatCompletion,
    ("/v1/chat/completions", True): sdk_chat.ChatCompletionChunk,
    ("/v1/completions", False): sdk.Completion,
    ("/v1/completions", True): sdk.Completion,
}


def problems(answer: Answer) -> list[str]:
    if answer.status >= 400 or any(value.startswith(b'{"error"') for value in answer.json_values):
        return []  # the shape of errors is checked by our own document, and is OpenAI's
    return _schema_problems(answer) + _sdk_problems(answer)


def _schema_problems(answer: Answer) -> list[str]:
    check = _check()
    responses = None if check is None else check.responses(answer)
    if check is None or responses is None:
        return []
    content = responses[str(answer.status)]["content"]
    # The completions' events have the schema of the whole answer, which is documented in words alone.
    schema = content.get(answer.media_type, content["application/json"])["schema"]
    return [f"OpenAI's schema: {problem}" for problem in check.problems(answer, schema)]


def _sdk_problems(answer: Answer) -> list[str]:
    kind = _SDK_TYPES.get((answer.path, answer.is_stream))
    if kind is None:
        return []
    found = []
    for value in answer.json_values:
        try:
            kind.model_validate(json.loads(value), strict=True)
        except pydantic.ValidationError as error:
            # The SDK's type has no null either.
            if kind is not sdk.Completion or error.errors()[0]["loc"] != ("usage",):
                found.append(f"the SDK: {answer.path}: {error}")
    return found


@cache
def _check() -> DocumentCheck | None:
    if not DOCUMENT.exists():
        return None
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    kept = {path: document["paths"][path] for path in document["paths"]}
    for name, field, schema, _ in CORRECTIONS:
        document["components"]["schemas"][name]["properties"][field] = schema
    return DocumentCheck(_with_null({"paths": kept, "components": document["components"]}), prefix="/v1")


def _with_null(schema: Any) -> Any:
    """`nullable`, OpenAPI 3.0's word that the document still uses, in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _with_null(value) for key, value in schema.items()}
    return {"anyOf": [converted, {"type": "null"}]} if schema.get("nullable") is True else converted
