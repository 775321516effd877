"""JSON schemas that outputs are to match: what the library would take wrongly, or not at all, is refused here by name.

The library refuses most of what it has not built; what it is lenient with was found by sampling from the schemas of the
JSON Schema Test Suite and validating every output (benchmarks/json_schema.py, docs/structured-output.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shared.grammar import GrammarError

# Deeper ones are some mistake; and recursion in Python, here and in the standard library, stays shallow.
_MAX_DEPTH = 64


def checked_schema(source: str) -> dict[str, Any]:
    """The schema as it goes to the library. Raises GrammarError."""
    try:
        schema = json.loads(source, parse_constant=_no_constant)
    except ValueError as error:
        raise GrammarError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise GrammarError(f"it is nested more than {_MAX_DEPTH} deep") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError("it is neither an object nor a boolean")
    for subschema in _subschemas(schema, 0):
        if "x-guidance" in subschema:
            raise GrammarError("'x-guidance' is not supported")  # it could have the library ignore keywords
    if schema is False:
        raise GrammarError("nothing matches it")
    return {} if schema is True else schema


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _subschemas(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        raise GrammarError(f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _subschemas(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _subschemas(inner, depth + 1)
