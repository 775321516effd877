"""Converts arguments that a model writes as text to JSON, by the types in the function's schema.

The types are tried in the order of vLLM's `coerce_to_schema_type`, and each accepts the same texts as there. There is
one exception: if the schema allows a number and a string, and the number would lose characters (such as the zeros of
007), the value is a string. A value that fits none of its types is JSON if it parses as JSON, and a string otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Set
from typing import Any

from services.router.chat.parsers.form import Functions
from services.router.chat.parsers.json_call import Emit
from services.router.chat.parsers.literals import literal_json

STRING = frozenset({"string"})
# A string value is streamed if its schema allows only these types.
_STREAMED = frozenset({"string", "null"})
_NULLS = ("null", "none")
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Every integer up to this limit has an exact float.
_MAX_EXACT = 2.0**53
# Python's type names, which schemas written by hand often use.
_ALIASES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}
_TYPES_OF_VALUES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class ArgumentTypes:
    """JSON types of functions' arguments. Each message has its own instance, which reads each argument's schema
    once."""

    __slots__ = ("_functions", "_known")

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, function: str, key: str) -> frozenset[str]:
        """Returns the argument's types. There is at least one: an argument without a type counts as a string."""
        types = self._known.get((function, key))
        if types is None:
            types = self._known[function, key] = self._read(function, key)
        return types

    def may_have(self, function: str, key: str) -> bool:
        """Returns whether the function can have this argument: whether its schema names the argument, or names no
        arguments at all."""
        names = (self._functions.get(function) or {}).get("properties")
        return key in names if isinstance(names, Mapping) and names else True

    def _read(self, function: str, key: str) -> frozenset[str]:
        root = self._functions.get(function) or {}
        properties = root.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            described = properties[key]
        else:
            described = root.get("additionalProperties")
        return _types_in(described, root) or STRING


def _types_in(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types of the values that can fit the schema. `root`: the schema that references point into."""
    found: set[str] = set()
    followed: set[str] = set()
    # A loop instead of recursion, because references can form a chain that is longer than Python's stack.
    left = [schema]
    while left:
        schema = left.pop()
        if not isinstance(schema, Mapping):
            continue
        named = schema.get("type")
        names = [name.strip().lower() for name in _list(named) or [named] if isinstance(name, str)]
        found.update(_ALIASES.get(name, name) for name in names)
        values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        found.update(_TYPES_OF_VALUES[type(value)] for value in values if type(value) in _TYPES_OF_VALUES)
        if schema.get("nullable") is True:
            found.add("null")
        if named is None:
            found.update(name for keyword, name in (("properties", "object"), ("items", "array")) if keyword in schema)
        for keyword in ("anyOf", "oneOf", "allOf"):
            left += _list(schema.get(keyword))
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            left.append(_resolved(reference, root))
    return frozenset(found)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """Returns the part of `root` that a JSON pointer such as #/$defs/Color names; None if there is none."""
    if not reference.startswith("#"):
        return None
    at: Any = root
    for step in reference[1:].split("/")[1:]:
        at = at.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at


class ArgumentWriter:
    """Writes one argument as JSON. Streams a string; writes any other value once it is complete."""

    __slots__ = ("_emit", "_is_open", "_pieces", "_types")

    def __init__(self, emit: Emit, types: frozenset[str]) -> None:
        self._emit = emit
        self._types = types
        self._pieces: list[str] = []
        self._is_open = False

    def write(self, text: str) -> None:
        if not self._is_open:
            self._pieces.append(text)
            if "string" not in self._types or not self._types <= _STREAMED:
                return
            text = "".join(self._pieces)
            if "null" in self._types and any(word.startswith(text.lower()) for word in _NULLS):
                return
            self._is_open = True
            self._emit('"')
        self._emit(json.dumps(text, ensure_ascii=False)[1:-1])

    def close(self) -> None:
        self._emit('"' if self._is_open else as_json("".join(self._pieces), self._types))


def as_json(text: str, types: Set[str]) -> str:
    """Returns the text as a JSON value of one of `types`. Tries null first, then integer or number, boolean, object or
    array, and last string, which any text fits. If `types` include string, text becomes a number only if JSON programs
    would print this number as the same text. If the text fits none of `types`: returns it stripped if it is JSON, the
    JSON of a Python constant such as None, and any other text as a string."""
    word = text.strip()
    if "null" in types and word.lower() in _NULLS:
        return "null"
    if "integer" in types or "number" in types:
        number = _number(word, is_integer="number" not in types)
        if number is not None and ("string" not in types or (number == word and _is_printed_alike(number))):
            return number
    if "boolean" in types and (boolean := _BOOLEANS.get(word.lower())):
        return boolean
    if ("object" in types or "array" in types) and (container := _container(word, types)):
        return container
    if "string" in types:
        return json.dumps(text, ensure_ascii=False)
    return any_json(word) or json.dumps(text, ensure_ascii=False)


def _number(word: str, is_integer: bool) -> str | None:
    """Returns the number unchanged if it is valid JSON, and otherwise as Python prints it. Returns None if `word` is
    not a finite number or, with `is_integer`, not an integer."""
    match = NUMBER.fullmatch(word)
    try:
        if match is not None and not (is_integer and (match[1] or match[2])):
            return word if math.isfinite(float(word)) else None
        if is_integer:
            return str(int(word))
        value = float(word)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(value):
        return None
    return str(int(value)) if value.is_integer() and abs(value) <= _MAX_EXACT else repr(value)


def _is_printed_alike(number: str) -> bool:
    """Returns whether a program that reads the JSON number, perhaps as a float, would print it unchanged."""
    value = json.loads(number)
    return json.dumps(value) == number and abs(value) <= _MAX_EXACT


def _container(word: str, types: Set[str]) -> str | None:
    """Returns the object or array in `word` as JSON. `word` can be JSON, a Python literal, or JSON inside a JSON
    string. Returns None if `word` contains no object or array, or one whose type is not among `types`."""
    first = {bracket for bracket, name in (("{", "object"), ("[", "array")) if name in types}
    try:
        value = json.loads(word, parse_constant=_refuse)
        if isinstance(value, str):
            # JSON's escapes can encode lone surrogates, which UTF-8 text cannot hold.
            value.encode()
            return _container(value.strip(), types)
        found: str | None = word
    except (ValueError, RecursionError):
        found = literal_json(word)
    return found if found is not None and found[0] in first else None


def any_json(word: str) -> str | None:
    """Returns the text if it is JSON, or the JSON of a Python constant; None if it is neither."""
    try:
        value = json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _CONSTANTS.get(word)
    return None if isinstance(value, float) and not math.isfinite(value) else word


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
