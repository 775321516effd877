"""Which keywords hold schemas, and which only describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WITH_A_SCHEMA = frozenset(
    {"additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
# `items`: of drafts before 2020-12.
WITH_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
WITH_NAMED_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
# These and keywords that no draft knows say nothing about which instances are valid.
ASSERTIONS = (
    WITH_A_SCHEMA
    | WITH_SCHEMAS
    | (WITH_NAMED_SCHEMAS - {"$defs", "definitions"})
    | {"$ref", "$dynamicRef", "$recursiveRef", "type", "const", "enum", "required", "dependentRequired", "uniqueItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format", "pattern"}
    | {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)


def with_inner(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy whose schemas, one level down, are changed so."""
    changed = dict(schema)
    for keyword, value in schema.items():
        if keyword in WITH_SCHEMAS and isinstance(value, list):
            changed[keyword] = [change(inner) for inner in value]
        elif keyword in WITH_A_SCHEMA and isinstance(value, dict | bool):
            changed[keyword] = change(value)
        elif keyword in WITH_NAMED_SCHEMAS and isinstance(value, dict):
            changed[keyword] = {
                name: inner if isinstance(inner, list) else change(inner) for name, inner in value.items()
            }
    return changed
