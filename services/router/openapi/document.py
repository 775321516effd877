"""The OpenAPI 3.1 document of what is served over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.router.http import Operation
from services.router.openapi.grpc_services import grpc_services
from services.router.openapi.schemas import component_schemas

_JSON = "application/json"

# What can be wrong with any request, whatever it asks for. The gateway answers by itself where no router is reached.
_ANYWHERE = {
    "400": "Something in the request is wrong; `param` names the field.",
    "403": "The page that asks may not: its origin is none that the server allows.",
    "408": "The request took too long to arrive.",
    "431": "The headers are too large.",
    "500": "A fault of the server's.",
    "503": "Nobody can take it now.",
    "504": "It could not be answered in time.",
}
_NO_KEY = "The key is missing or wrong."
_NO_MODEL = "There is no such model."
_NOTHING = "There is none."
_TOO_LARGE = "The body is larger than the gateway takes."
_NO_JSON = "The body is compressed, or of another type than JSON."
_OVERLOADED = "There is too much to do."
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}}
}

_ABOUT = """\
One gateway serves these paths and, on the same port, gRPC and gRPC-Web. Errors have OpenAI's shape, but for the
paths of Anthropic's and Ollama's APIs, where they have theirs. A slash after a path changes nothing, and probes (`/`,
`/health`, `/v2/health/`) may ask by HEAD. Other paths than these get 404; other methods than a path's own get 405, with
those in the header `Allow`.

Answers that stream are server-sent events, and Ollama's are lines: the schema is that of the JSON after each `data: `,
or of each line. Where an answer breaks off, the last of them is an error. Otherwise the last event of chats and
completions is `data: [DONE]`."""


def document(operations: Iterable[Operation], version: str, root_path: str = "") -> dict[str, Any]:
    """`root_path`: what clients write before every path, as a proxy in front has it."""
    operations = tuple(operations)
    used = [model for one in operations for model in (one.body, one.reply, one.event, one.error) if model is not None]
    references, schemas = component_schemas(used)
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _Describer(references).describe(operation)
        paths.setdefault(operation.path, {})[operation.verb.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        **({"servers": [{"url": root_path}]} if root_path else {}),
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "x-grpc-services": grpc_services(),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "Where the server was given keys."}
            },
        },
    }


class _Describer:
    def __init__(self, references: dict[Any, Any]) -> None:
        self._references = references

    def describe(self, operation: Operation) -> dict[str, Any]:
        described: dict[str, Any] = {
            "operationId": operation.name,
            "tags": [operation.tag],
            "summary": operation.summary,
        }
        if operation.description:
            described["description"] = operation.description
        if operation.parameters:
            described["parameters"] = [
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "description": text,
                    "schema": {"type": "string", "minLength": 1},
                    "examples": self._examples(operation, name),
                }
                for name, text in operation.parameters.items()
            ]
        if operation.body is not None:
            examples = self._examples(operation)
            for example in examples.values():
                example["value"] = {k: v for k, v in example["value"].items() if k not in operation.parameters}
            content = {"schema": self._references[operation.body], "examples": examples}
            described["requestBody"] = {"required": True, "content": {_JSON: content}}
        answers = {} if operation.is_always_missing else {"200": self._answer(operation)}
        described["responses"] = answers | self._errors(operation)
        # An empty requirement: a server without keys asks for none.
        described["security"] = [{}, {"key": []}] if operation.needs_key else []
        return described

    def _examples(self, operation: Operation, parameter: str | None = None) -> dict[str, Any]:
        return {
            f"example{number}": {
                "summary": example.summary,
                "value": operation.body_of(example) if parameter is None else example.value[parameter],
            }
            for number, example in enumerate(operation.examples, start=1)
        }

    def _answer(self, operation: Operation) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object" if operation.content_type == _JSON else "string"}
        if operation.reply is not None:
            schema = self._references[operation.reply]
        if operation.is_array:
            schema = {"type": "array", "items": schema}
        content: dict[str, Any] = {operation.content_type: {"schema": schema}}
        if operation.binary_type:
            content[operation.binary_type] = {"schema": {"type": "string"}}
        if operation.event is not None:
            content[operation.event_type] = {"schema": self._references[operation.event]}
        return {"description": "The answer.", "content": content}

    def _errors(self, operation: Operation) -> dict[str, Any]:
        texts = dict(_ANYWHERE)
        if operation.needs_key:
            texts["401"] = _NO_KEY
        if operation.names_model:
            texts["404"] = _NO_MODEL
        if operation.is_always_missing:
            texts["404"] = _NOTHING
        if operation.verb == "POST":
            texts["413"] = _TOO_LARGE
            texts["415"] = _NO_JSON
        if operation.may_overload:
            texts["429"] = _OVERLOADED
        content = {_JSON: {"schema": self._references[operation.error]}}
        return {
            status: {
                "description": text,
                **({"headers": _RETRY_AFTER} if status in ("429", "503") else {}),
                "content": content,
            }
            for status, text in sorted(texts.items())
        }
