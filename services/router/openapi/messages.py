"""JSON schemas of protobuf messages, in protobuf's standard JSON mapping, which the gateway's transcoder uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.router.openapi.comments import proto_comments

_INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
_UINT32 = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
# Answers have 64-bit integers as strings, because JSON numbers cannot represent all of them. Requests can have strings
# or numbers.
_INT64 = {"anyOf": [{"type": "string", "pattern": "^-?[0-9]+$"}, {"type": "integer"}]}
_UINT64 = {"anyOf": [{"type": "string", "pattern": "^[0-9]+$"}, {"type": "integer", "minimum": 0}]}
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_FLOAT: _NUMBER,
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_SINT32: _INT32,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT64: _UINT64,
}
_PACKAGE = "quire.inference.v1."
# Prefix of a reference to a schema in the OpenAPI document.
REF = "#/components/schemas/"


def schema_name(message: Descriptor) -> str:
    """Returns a schema name such as `InferenceChatRequest`. The prefix distinguishes it from other APIs' schemas."""
    return "Inference" + message.full_name.removeprefix(_PACKAGE)


def message_schemas(messages: Iterable[Descriptor]) -> dict[str, dict[str, Any]]:
    """Returns the schemas of these messages and of all messages nested in them, by name."""
    found = {message.full_name: message for message in _with_parts(messages)}
    return {schema_name(message): _schema(message) for message in found.values()}


def _with_parts(messages: Iterable[Descriptor]) -> Iterator[Descriptor]:
    for message in messages:
        yield message
        yield from _with_parts(field.message_type for field in message.fields if field.message_type is not None)


def _schema(message: Descriptor) -> dict[str, Any]:
    comments = proto_comments()
    properties = {
        field.json_name: {**_of_field(field), "description": comments[field.full_name]} for field in message.fields
    }
    return {
        "type": "object",
        "description": comments[message.full_name],
        "properties": properties,
        "additionalProperties": False,
    }


def _of_field(field: FieldDescriptor) -> dict[str, Any]:
    value = _of_value(field)
    return {"type": "array", "items": value} if field.is_repeated else dict(value)


def _of_value(field: FieldDescriptor) -> dict[str, Any]:
    if field.message_type is not None:
        return {"$ref": REF + schema_name(field.message_type)}
    if field.enum_type is not None:
        return {"enum": [value.name for value in field.enum_type.values]}
    return _SCALARS[field.type]
