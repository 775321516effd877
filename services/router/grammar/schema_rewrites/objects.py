"""Rewrites keywords for objects: dependencies, `propertyNames` and `patternProperties`."""

from __future__ import annotations

from typing import Any

from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument, demand, is_number, key
from services.router.grammar.schema_rewrites.formats import format_pattern
from services.router.grammar.schema_rewrites.keywords import ASSERTIONS
from services.router.grammar.schema_rewrites.negation import negated

_STRING = frozenset({"string"})
# `minLength` and `maxLength` of names must be below this: regular expressions support no larger counts.
_MAX_LENGTH = 10_000
# Maximum number of references that are followed in a row. A longer chain is probably a cycle.
_MAX_REFERENCES = 8
_LENGTHS = frozenset({"minLength", "maxLength"})


def dependencies(schema: Schema) -> None:
    """Replaces `dependentRequired` (JSON Schema validation 6.5.4), `dependentSchemas` (core 10.2.2.4) and the older
    `dependencies` by an `anyOf` for each member: the member is absent, or it is present and what depends on it holds.
    """
    conditions = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, asked in schema.pop(keyword, {}).items():
            there: Any = (
                {"required": [name, *asked]} if isinstance(asked, list) else {"allOf": [{"required": [name]}, asked]}
            )
            conditions.append({"anyOf": [{"properties": {name: False}}, there]})
    demand(schema, *conditions)


def property_names(schema: Schema, document: SchemaDocument) -> None:
    """Rewrites `propertyNames` (JSON Schema core 10.3.2.4) as `properties` or `patternProperties`, with no additional
    properties."""
    if "propertyNames" not in schema:
        return
    names = _about_strings(schema["propertyNames"], document)
    said: Schema = {}
    if names is not True and names != {}:
        listed = _listed(names)
        if listed is not None:
            said["properties"] = dict.fromkeys(listed, True)
        else:
            pattern = _pattern(names, document)
            if pattern is None:
                return
            said["patternProperties"] = {pattern: True}
        demand(schema, said | {"additionalProperties": False})
    del schema["propertyNames"]


def _about_strings(names: Any, document: SchemaDocument) -> Any:
    """Returns `names`, the value of `propertyNames`, as a schema of strings: follows its references, and leaves out
    keywords that have no effect on strings."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(names, dict):
            break
        names = {
            keyword: value
            for keyword, value in names.items()
            if keyword in ASSERTIONS and not (keyword == "type" and (value == "string" or "string" in list(value)))
        }
        if names.keys() != {"$ref"}:
            break
        names = document.resolve(names["$ref"])
    return names


def _listed(names: Any) -> list[str] | None:
    match names:
        case False:
            return []
        case {"const": name, **rest} if not rest:
            return [name] if isinstance(name, str) else []
        case {"enum": list(values), **rest} if not rest:
            return [name for name in values if isinstance(name, str)]
    return None


def _pattern(names: Any, document: SchemaDocument) -> str | None:
    """Returns a regular expression for the names that the schema `names` allows. None if the schema is none of the
    simple cases below."""
    match names:
        case {"not": refused, **rest} if not rest:
            names = _about_strings(negated(refused, document, _STRING), document)
    match names:
        case {"pattern": str(pattern), **rest} if not rest:
            return pattern
        case {"format": str(name), **rest} if not rest:
            return format_pattern(name)
        case dict(lengths) if lengths and lengths.keys() <= _LENGTHS:
            if all(is_number(length) and 0 <= length < _MAX_LENGTH for length in lengths.values()):
                longest = int(lengths["maxLength"]) if "maxLength" in lengths else ""
                return f"^[\\s\\S]{{{int(lengths.get('minLength', 0))},{longest}}}$"
    return None


def pattern_properties(schema: Schema) -> None:
    """Merges those patterns of `patternProperties` (JSON Schema core 10.3.2.2) that have equal schemas, because
    llguidance refuses patterns that overlap. Removes patterns without effect.

    Puts `additionalProperties` behind them. If `allOf` or a similar keyword stood between the two, llguidance would
    ignore the patterns when it applies `additionalProperties`, and refuse valid members."""
    patterns = schema.get("patternProperties")
    for keyword in ("patternProperties", "additionalProperties"):
        if keyword in schema:
            schema[keyword] = schema.pop(keyword)
    if not isinstance(patterns, dict) or len(patterns) < 2:
        return
    by_schema: dict[str, list[str]] = {}
    for pattern, inner in patterns.items():
        if (inner is True or inner == {}) and "additionalProperties" not in schema:
            continue  # has no effect
        by_schema.setdefault(key(inner), []).append(pattern)
    merged: Schema = {}
    for of_schema in by_schema.values():
        either = _either(of_schema)
        merged |= (
            {pattern: patterns[pattern] for pattern in of_schema}
            if either is None
            else {either: patterns[of_schema[0]]}
        )
    schema["patternProperties"] = merged


def _either(patterns: list[str]) -> str | None:
    """Returns a pattern that matches every text that one of `patterns` matches. Returns None if a pattern might contain
    an anchor in the middle, because llguidance does not support such anchors."""
    if len(patterns) == 1:
        return patterns[0]
    whole = []
    for pattern in patterns:
        inner = pattern.removeprefix("^")
        ends = inner.endswith("$") and not inner.endswith("\\$")
        inner = inner[:-1] if ends else inner
        if set(inner) & set("^$|\\"):
            return None
        before, after = "" if pattern.startswith("^") else "[\\s\\S]*", "" if ends else "[\\s\\S]*"
        whole.append(f"{before}(?:{inner}){after}")
    return f"^(?:{'|'.join(whole)})$"
