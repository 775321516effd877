"""Schemas that exclude given values: the negations of `const` and `enum`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from services.router.grammar.schema_rewrites.document import any_of, is_number

# Maximum length of an excluded string, in characters. Each character becomes a nested group, and regular expressions
# support about 250 levels.
_MAX_STRING = 100
_Trie = dict[str, "_Trie"]
# Marks the end of a string in a trie.
_END = ""


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def all_but(values: Sequence[Any], value_type: str) -> Any:
    """Returns a schema that accepts all values of the type `value_type` except `values`, which all have this type.
    Returns None if the keywords that llguidance supports cannot express such a schema."""
    match value_type:
        case "null":
            return False
        case "boolean":
            return any_of({"const": other} for other in (True, False) if other not in values)
        case "number":
            return _other_numbers(sorted(set(values)))
        case "string":
            return other_strings(values)
        case "array":
            return _other_arrays(values[0]) if len(values) == 1 else None
    # No keywords accept exactly the objects that differ from a given one, because they can have members of any name.
    return None


def but(value: Any) -> Any:
    """Returns a schema that accepts everything except `value`; None if supported keywords cannot express it."""
    same_type = all_but([value], type_of(value))
    if same_type is None:
        return None
    others = [name for name in ("null", "boolean", "number", "string", "array", "object") if name != type_of(value)]
    return any_of([{"type": others}, same_type])


def _other_numbers(values: list[float]) -> Any:
    if not all(map(is_number, values)):
        return None
    between = [{"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(values)]
    below, above = {"type": "number", "exclusiveMaximum": values[0]}, {"type": "number", "exclusiveMinimum": values[-1]}
    return any_of([below, *between, above])


def other_strings(values: Sequence[str]) -> Any:
    """Returns a schema that accepts all strings except `values`; None if one of them is too long."""
    if any(len(value) > _MAX_STRING for value in values):
        return None
    trie: _Trie = {}
    for value in values:
        node = trie
        for char in value:
            node = node.setdefault(char, {})
        node[_END] = {}
    return {"type": "string", "pattern": f"^(?:{_leaving(trie)})$"}


def _leaving(node: _Trie) -> str:
    """Returns a regular expression for all strings that are not in the trie."""
    following = [char for char in node if char != _END]
    options = [] if _END in node else [""]
    others = "".join(map(_escaped, following))
    if '"' in following or "\\" in following:
        # A class that excludes the quotation mark or the backslash must also exclude the null character (see
        # patterns.py), so the null character gets an alternative of its own.
        options.append(f"[^\\x{{0}}{others}][\\s\\S]*")
        options += [] if "\0" in following else ["\\x{0}[\\s\\S]*"]
    else:
        options.append(f"[^{others}][\\s\\S]*" if following else "[\\s\\S]+")
    options += [f"{_escaped(char)}(?:{_leaving(node[char])})" for char in following]
    return "|".join(options)


def _escaped(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _other_arrays(items: list[Any]) -> Any:
    """Returns a schema of all arrays that differ from `items`: they are shorter or longer, or differ at some position.
    None if supported keywords cannot express it."""
    others = [but(item) for item in items]
    if None in others:
        return None
    options: list[Any] = [{"minItems": len(items) + 1}]
    if items:
        options.append({"maxItems": len(items) - 1})
    options += [{"prefixItems": [True] * place + [other], "minItems": place + 1} for place, other in enumerate(others)]
    return any_of({"type": "array"} | option for option in options)
