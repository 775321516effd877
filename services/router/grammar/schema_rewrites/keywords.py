"""Lists of JSON Schema keywords: those that contain schemas, and those that affect validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WITH_A_SCHEMA = frozenset(
    {"additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
# `items` can be a list in drafts before 2020-12.
WITH_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
WITH_NAMED_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
# Keywords that affect which instances are valid. All others, including unknown ones, do not.
ASSERTIONS = (
    WITH_A_SCHEMA
    | WITH_SCHEMAS
    | (WITH_NAMED_SCHEMAS - {"$defs", "definitions"})
    | {"$ref", "$dynamicRef", "$recursiveRef", "type", "const", "enum", "required", "dependentRequired", "uniqueItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format", "pattern"}
    | {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)


def with_inner(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns a copy of `schema` with `change` applied to each schema directly inside it."""
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
