"""Checks the enum values of a request. In errors, replaces a field's name with the field's path in the request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from services.router.errors import ApiError, invalid

# A part of a path: a field's name, and for a repeated field or map the index or key of an entry.
_PART = re.compile(r"(\w+)(?:\[([^\]]*)\])?")
# Longer paths are not looked up. They contain names that the client made up, and the cost of looking up a path grows
# with its length.
_MAX_PATH_CHARS = 256
_MAX_PATH_PARTS = 16
# Errors call the field with the model's name `model`. The protos call this field one of the names below.
_MODEL_NAMES = ("model", "name", "model_name")


def proto_path(descriptor: Any, param: str) -> str | None:
    """Returns the full path, in the request's message, of the field that an error calls `param`. For example, the path
    of `options.logit_bias` is `options.sampling.logit_bias`. In `param`, the messages around the field can be missing
    or have another API's names. If several fields fit, returns the shallowest. Returns None if no field fits, or if
    `param` is too long."""
    if len(param) > _MAX_PATH_CHARS or param.count(".") >= _MAX_PATH_PARTS:
        return None
    found = _located(descriptor, param.split("."))
    return None if found is None else found[0]


def _located(descriptor: Any, parts: Sequence[str]) -> tuple[str, str] | None:
    """Returns the field's path, and the rest of the path if the field is a string that holds JSON, such as
    `.properties` of a tool's parameters."""
    for first in range(len(parts)):
        for last in range(len(parts), first, -1):
            path = ".".join(parts[first:last])
            for prefix, message in _messages(descriptor):
                for name in _MODEL_NAMES if path == "model" else (path,):
                    field = _resolved(message, name)
                    if field is not None and (last == len(parts) or _is_text(field)):
                        return prefix + name, "".join(f".{part}" for part in parts[last:])
    return None


def in_proto_terms(error: ApiError, descriptor: Any) -> ApiError:
    """Returns a copy of the error that names the field by its path in the request's protobuf message, both in `param`
    and in the error's text. The text keeps a path that goes on into a field's JSON. Cuts a name that is too long."""
    if error.param is None:
        return error
    if len(error.param) > _MAX_PATH_CHARS:
        return replace(error, param=f"{error.param[:_MAX_PATH_CHARS]}…")
    if error.param.count(".") >= _MAX_PATH_PARTS or (found := _located(descriptor, error.param.split("."))) is None:
        return error
    path, rest = found
    message = error.message.replace(f"'{error.param}", f"'{path}{rest}")
    return ApiError(error.kind, message, path, error.code, error.retry_after)


def check_enums(request: Any) -> None:
    """Raises ApiError for the first field, in the order of the proto, whose value is not defined in its enum."""
    for path, enum, value in _enum_values(request, ""):
        if value not in enum.values_by_number:
            names = ", ".join(entry.name for entry in enum.values)
            message = f"Invalid value for '{path}': {value}. Supported values of {enum.name} are: {names}."
            raise invalid(message, path, "invalid_value")


def _enum_values(message: Any, prefix: str) -> Iterator[tuple[str, Any, int]]:
    """Yields path, enum and value of each enum field that is set. Skips messages whose type contains no enum."""
    if not _has_enums(message.DESCRIPTOR):
        return
    for field, value in message.ListFields():
        path = prefix + field.name
        entry = field.message_type
        if field.enum_type is None and (entry is None or not _has_enums(entry)):
            # A field without enums is skipped as a whole: it can be a list of thousands of messages or numbers.
            continue
        if entry is not None and entry.GetOptions().map_entry:
            field = entry.fields_by_name["value"]
            values = [(f"{path}[{key}]", value[key]) for key in value]
        elif field.is_repeated:
            values = [(f"{path}[{index}]", one) for index, one in enumerate(value)]
        else:
            values = [(path, value)]
        for one_path, one in values:
            if field.enum_type is not None:
                yield one_path, field.enum_type, one
            elif field.message_type is not None:
                yield from _enum_values(one, f"{one_path}.")


@cache
def _has_enums(descriptor: Any) -> bool:
    """Whether this message type, or one nested in it, has an enum field."""
    return any(field.enum_type is not None for _, message in _messages(descriptor) for field in message.fields)


@cache
def _messages(descriptor: Any) -> tuple[tuple[str, Any], ...]:
    """Returns the message type and all types nested in it, shallowest first, each once, with the prefix of their
    fields' paths."""
    found = [("", descriptor)]
    for prefix, message in found:
        for field in message.fields:
            inner = field.message_type
            if inner is not None and all(inner is not known for _, known in found):
                found.append((f"{prefix}{field.name}.", inner))
    return tuple(found)


def _is_text(field: Any) -> bool:
    """Returns whether the field is a string. A path into it names a value of JSON that the string holds."""
    return field is not None and field.type == field.TYPE_STRING and not field.is_repeated


def _resolved(descriptor: Any, path: str) -> Any:
    """Returns the descriptor of the field at this path of a message; None if there is no such field."""
    message, field = descriptor, None
    for part in path.split("."):
        match = _PART.fullmatch(part)
        if match is None or message is None or match[1] not in message.fields_by_name:
            return None
        field = message.fields_by_name[match[1]]
        if match[2] is not None and not field.is_repeated:
            return None
        message = field.message_type
    return field
