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
import openai.types.responses as sdk_responses
import pydantic

from tests.fidelity.answer import Answer
from tests.fidelity.document_check import DocumentCheck

DOCUMENT = Path(__file__).parents[2].parent / "shared" / "schema" / "openai-openapi.json"

# Where OpenAI's document is not what OpenAI's own servers do: the only places. They may be null there, and "[]" are an
# array's items. The SDK's types were made from that document.
#
# Nothing is known of the first token of a prompt that is echoed.
NULL_IN_COMPLETIONS = (
    ("choices", "[]", "logprobs", "token_logprobs", "[]"),
    ("choices", "[]", "logprobs", "top_logprobs", "[]"),
)
# It has one schema for a completion and for the events of a streamed one; but before a choice's last event its
# finish_reason is null, and with include_usage so is each usage before the last, as the schemas of chat's events say.
NULL_IN_COMPLETION_EVENTS = (*NULL_IN_COMPLETIONS, ("choices", "[]", "finish_reason"), ("usage",))
_COMPLETION = "CreateCompletionResponse"
_COMPLETION_EVENT = "CreateCompletionEvent"
_ERROR = {"$ref": "#/components/schemas/ErrorResponse"}

# By path, and whether the answer streams.
_SDK_TYPES: dict[tuple[str, bool], pydantic.TypeAdapter[Any]] = {
    ("/v1/chat/completions", False): pydantic.TypeAdapter(sdk_chat.ChatCompletion),
    ("/v1/chat/completions", True): pydantic.TypeAdapter(sdk_chat.ChatCompletionChunk),
    ("/v1/completions", False): pydantic.TypeAdapter(sdk.Completion),
    ("/v1/completions", True): pydantic.TypeAdapter(sdk.Completion),
    ("/v1/responses", False): pydantic.TypeAdapter(sdk_responses.Response),
    ("/v1/responses", True): pydantic.TypeAdapter(sdk_responses.ResponseStreamEvent),
}
_EXCUSED = {False: NULL_IN_COMPLETIONS, True: NULL_IN_COMPLETION_EVENTS}


def problems(answer: Answer) -> list[str]:
    if _is_anthropics(answer):
        return []
    return _schema_problems(answer) + _sdk_problems(answer)


def _is_anthropics(answer: Answer) -> bool:
    """Models are described on OpenAI's paths as Anthropic has them, to its clients."""
    if not answer.path.startswith("/v1/models"):
        return False
    answered = json.loads(answer.body).keys()
    return "object" not in answered if answer.status == 200 else "type" in answered


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
    error_schema = _ERROR if answer.is_stream else None
    return [f"OpenAI's schema: {problem}" for problem in check.problems(answer, schema, error_schema)]


def _sdk_problems(answer: Answer) -> list[str]:
    kind = _SDK_TYPES.get((answer.path, answer.is_stream))
    if kind is None or answer.status >= 400:
        return []
    found = []
    for value in map(json.loads, answer.json_values):
        if answer.is_stream and "error" in value:
            continue
        try:
            kind.validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            found += [
                f"the SDK: {answer.path}: {detail['loc']}: {detail['msg']}"
                for detail in error.errors()
                if not (answer.path == "/v1/completions" and _is_excused(detail, answer.is_stream))
            ]
    return found


def _is_excused(detail: Any, is_stream: bool) -> bool:
    place = tuple("[]" if isinstance(part, int) else part for part in detail["loc"])
    return detail["input"] is None and place in _EXCUSED[is_stream]


@cache
def _check() -> DocumentCheck | None:
    if not DOCUMENT.exists():
        return None
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    schemas[_COMPLETION_EVENT] = copy.deepcopy(schemas[_COMPLETION])
    for schema, places in ((_COMPLETION, NULL_IN_COMPLETIONS), (_COMPLETION_EVENT, NULL_IN_COMPLETION_EVENTS)):
        for place in places:
            _allow_null(schemas[schema], place)
    # OpenAI's servers, its SDK and Open Responses have null there until a response is over.
    response = schemas["Response"]["allOf"][-1]["properties"]
    response["usage"] = {"anyOf": [response["usage"], {"type": "null"}]}
    # An embedding that was asked for in base64, as the SDK does unasked, is a string.
    embedding = schemas["Embedding"]["properties"]
    embedding["embedding"] = {"anyOf": [embedding["embedding"], {"type": "string"}]}
    return DocumentCheck(_with_null(document), prefix="/v1")


def _allow_null(schema: Any, place: tuple[str, ...]) -> None:
    *parents, last = place
    for name in parents:
        schema = schema["items"] if name == "[]" else _object_of(schema)["properties"][name]
    owner, key = (schema, "items") if last == "[]" else (_object_of(schema)["properties"], last)
    owner[key] = {"anyOf": [owner[key], {"type": "null"}]}


def _object_of(schema: Any) -> Any:
    """The object's schema where it may also be null."""
    return next((choice for choice in schema.get("anyOf", ()) if "properties" in choice), schema)


def _with_null(schema: Any) -> Any:
    """`nullable`, OpenAPI 3.0's word that the document still uses, in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _with_null(value) for key, value in schema.items()}
    return {"anyOf": [converted, {"type": "null"}]} if schema.get("nullable") is True else converted
