"""JSON schemas that outputs are to match: what the library would take wrongly, or not at all, is refused here by name.

The library refuses most of what it has not built; what it is lenient with was found by sampling from the schemas of the
JSON Schema Test Suite and validating every output (benchmarks/json_schema.py, docs/structured-output.md).
"""

from __future__ import annotations

import json
from typing import Any

from services.router.schema_rewrites import rewrite
from shared.grammar import GrammarError

# Deeper ones are some mistake; and recursion in Python, here and in the standard library, stays shallow.
_MAX_DEPTH = 64
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)
_WITH_A_SCHEMA = frozenset(
    {"additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_WITH_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_WITH_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


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
    if schema is False:
        raise GrammarError("nothing matches it")
    if schema is True:
        return {}
    if "x-guidance" in schema:
        raise GrammarError("'x-guidance' is not supported")  # it could have the library ignore keywords
    try:
        simplified: dict[str, Any] = _simplified(schema, 0)
    except (AttributeError, TypeError):
        raise GrammarError("it is no schema: a keyword has a value of a wrong type") from None
    return simplified


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _simplified(schema: Any, depth: int) -> Any:
    """A schema without what says nothing, which the library would refuse all the same, and with the rest said as it
    takes it."""
    if depth > _MAX_DEPTH:
        raise GrammarError(f"it is nested more than {_MAX_DEPTH} deep")
    if not isinstance(schema, dict):
        return schema
    kept = {
        keyword: int(value) if keyword in _COUNTS and isinstance(value, float) and value.is_integer() else value
        for keyword, value in schema.items()
    }
    if "contains" not in kept or (kept.get("minContains") == 0 and "maxContains" not in kept):
        for keyword in ("contains", "minContains", "maxContains"):
            kept.pop(keyword, None)
    if "if" not in kept or not kept.keys() & {"then", "else"}:
        for keyword in ("if", "then", "else"):
            kept.pop(keyword, None)
    if kept.get("uniqueItems") is False:
        del kept["uniqueItems"]
    rewrite(kept)
    for keyword, value in kept.items():
        if keyword in _WITH_A_SCHEMA:
            kept[keyword] = _simplified(value, depth + 1)
        elif keyword in _WITH_SCHEMAS and isinstance(value, list):
            kept[keyword] = [_simplified(inner, depth + 1) for inner in value]
        elif keyword in _WITH_NAMED_SCHEMAS and isinstance(value, dict):
            kept[keyword] = {name: _simplified(inner, depth + 1) for name, inner in value.items()}
    return kept
