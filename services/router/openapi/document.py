"""The OpenAPI 3.1 document of the HTTP APIs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.router.http import Operation
from services.router.openapi.grpc_services import grpc_services
from services.router.openapi.schemas import component_schemas

_JSON = "application/json"

# Errors that any operation can return. If no router is reachable, the gateway itself returns 503.
_ANYWHERE = {
    "400": "The request is invalid. If a field is at fault, `param` names it.",
    "403": "The server does not allow requests from this web page's origin.",
    "408": "The request took too long to arrive.",
    "431": "The request's headers are too large.",
    "500": "The server had an internal error.",
    "503": "No scheduler can take the request now.",
    "504": "The server did not answer in time.",
}
_NO_KEY = "The API key is missing or wrong."
_NO_MODEL = "The model does not exist."
_NOTHING = "The server stores no such object."
_TOO_LARGE = "The body is larger than the server's limit."
_NO_JSON = "The body is compressed, or its content type is not JSON."
_OVERLOADED = "The server is overloaded."
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait before the next attempt.",
        "schema": {"type": "integer", "minimum": 1},
    }
}

_ABOUT = """\
One gateway serves these paths and, on the same port, gRPC and gRPC-Web. Errors have OpenAI's shape, except on the
paths of Anthropic's, Ollama's and KServe's APIs, which use their own. Every path can also end with a slash. The
probes (`/`, `/health`, `/v2/health/`) also accept HEAD. Unknown paths get status 404. Unknown methods of a path get
405, and the header `Allow` lists the path's methods.

Streamed answers are server-sent events; Ollama's are lines of JSON. The schema of an event describes the JSON after
`data: `, or the line. If an answer fails after it has begun, the last event is an error. Otherwise the last event of
chats and completions is `data: [DONE]`."""


def document(operations: Iterable[Operation], version: str, root_path: str = "") -> dict[str, Any]:
    """Returns the document as JSON. `root_path`: prefix of every path, if a proxy in front of the gateway adds one."""
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
                "key": {"type": "http", "scheme": "bearer", "description": "Needed if the server has keys."}
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
        # `{}` allows requests without a key, because a server might be configured without keys.
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
