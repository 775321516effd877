"""Finds schemas that have no instance in common. Recognizes only simple contradictions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.router.grammar.schema_rewrites.document import TYPES, Schema, SchemaDocument, is_number, key
from services.router.grammar.schema_rewrites.values import type_of

_MAX_DEPTH = 6


def disjoint(left: Any, right: Any, document: SchemaDocument, depth: int = 0) -> bool:
    """Returns whether no value matches both schemas. False if that is unknown."""
    document.spend()
    if depth > _MAX_DEPTH:
        return False
    lefts, rights = _conjuncts(left, document, 0), _conjuncts(right, document, 0)
    if False in lefts or False in rights:
        return True
    for some, other in ((lefts, right), (rights, left)):
        for conjunct in some:
            for keyword in ("anyOf", "oneOf"):
                options = conjunct.get(keyword)
                if isinstance(options, list) and all(disjoint(one, other, document, depth + 1) for one in options):
                    return True
    common = _types(lefts) & _types(rights)
    return all(_disjoint_in(name, lefts, rights, document, depth) for name in common)


def told_apart(options: Iterable[Any], beside: Any, document: SchemaDocument) -> bool:
    """Returns whether one member distinguishes the options, like the tag of a union: all options require the member,
    and no two of them allow the same value for it. `beside`: the other keywords of the schema that has the options."""
    parts = [_conjuncts({"allOf": [beside, option]}, document, 0) for option in options]
    parts = [conjuncts for conjuncts in parts if False not in conjuncts]
    if not parts or any(_types(conjuncts) != {"object"} for conjuncts in parts):
        return False
    names = set.intersection(*(_required(conjuncts) for conjuncts in parts))
    return any(_differ([_member(name, conjuncts) for conjuncts in parts], document) for name in names)


def _differ(schemas: list[Any], document: SchemaDocument) -> bool:
    seen: set[str] = set()
    for schema in schemas:
        values = finite_values(schema, document)
        keys = None if values is None else {key(value) for value in values}
        if keys is None or seen & keys:
            return False
        seen |= keys
    return True


def finite_values(schema: Any, document: SchemaDocument) -> list[Any] | None:
    """Returns a list that includes every instance of the schema, and perhaps other values. None if neither `const`,
    `enum` nor the types null and boolean limit the instances to such a list."""
    conjuncts = _conjuncts(schema, document, 0)
    if False in conjuncts:
        return []
    listed = [_listed(conjunct) for conjunct in conjuncts]
    fewest = min((values for values in listed if values is not None), key=len, default=None)
    if fewest is not None:
        return fewest
    types = _types(conjuncts)
    if types <= {"null", "boolean"}:
        return [value for value in (None, True, False) if type_of(value) in types]
    return None


def _conjuncts(schema: Any, document: SchemaDocument, depth: int) -> list[Any]:
    """Returns schemas that an instance of `schema` must all match: `schema` itself, the target of its `$ref`, and the
    schemas of its `allOf`, recursively. The list contains False if one of them is the schema `false`."""
    if schema is True:
        return []
    if schema is False:
        return [False]
    document.spend()
    if document.ignores_beside_ref and "$ref" in schema:
        schema = {"$ref": schema["$ref"]}
    found = [schema]
    if depth < _MAX_DEPTH:
        target = document.resolve(schema["$ref"]) if "$ref" in schema else None
        for inner in [*schema.get("allOf", ()), *([target] if target is not None else [])]:
            found += _conjuncts(inner, document, depth + 1)
    return found


def _types(conjuncts: Iterable[Schema]) -> set[str]:
    types = set(TYPES)
    for conjunct in conjuncts:
        listed = _listed(conjunct)
        if listed is not None:
            types &= {type_of(value) for value in listed}
        given = conjunct.get("type")
        if given is not None:
            names = {given} if isinstance(given, str) else set(given)
            types &= {"number" if name == "integer" else name for name in names}
    return types


def _listed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _disjoint_in(name: str, lefts: list[Schema], rights: list[Schema], document: SchemaDocument, depth: int) -> bool:
    """Returns whether no value of the type `name` matches all of `lefts` and `rights`. False if that is unknown."""
    left, right = _values(name, lefts), _values(name, rights)
    if left is not None and right is not None:
        return not left & right
    match name:
        case "number":
            return _apart(lefts + rights, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        case "string":
            return _apart(lefts + rights, ("minLength",), ("maxLength",))
        case "array":
            return _apart(lefts + rights, ("minItems",), ("maxItems",))
        case "object":
            return any(
                disjoint(_member(member, lefts), _member(member, rights), document, depth + 1)
                for member in _required(lefts) | _required(rights)
            )
    return False


def _values(name: str, conjuncts: list[Schema]) -> set[str] | None:
    """Returns the keys (see `key`) of the values of type `name` that the `const` or `enum` of every conjunct allows.
    Ignores conjuncts that have neither `const` nor `enum`. Returns None if all conjuncts have neither."""
    found: set[str] | None = None
    for conjunct in conjuncts:
        listed = _listed(conjunct)
        if listed is not None:
            keys = {key(value) for value in listed if type_of(value) == name}
            found = keys if found is None else found & keys
    return found


def _apart(schemas: list[Schema], lower: tuple[str, ...], upper: tuple[str, ...]) -> bool:
    """Returns whether a lower and an upper bound in `schemas` exclude each other. `lower`, `upper`: the keywords that
    set such bounds."""
    lows = [(schema[bound], bound) for schema in schemas for bound in lower if is_number(schema.get(bound))]
    highs = [(schema[bound], bound) for schema in schemas for bound in upper if is_number(schema.get(bound))]
    return any(
        low > high or (low == high and ("exclusive" in low_bound or "exclusive" in high_bound))
        for low, low_bound in lows
        for high, high_bound in highs
    )


def _required(conjuncts: list[Schema]) -> set[str]:
    return {name for conjunct in conjuncts for name in conjunct.get("required", ())}


def _member(name: str, conjuncts: list[Schema]) -> Any:
    """Returns a schema that the member `name` of an object must match, if all of `conjuncts` apply to the object."""
    asked = []
    for conjunct in conjuncts:
        if name in conjunct.get("properties", {}):
            asked.append(conjunct["properties"][name])
        elif "additionalProperties" in conjunct and "patternProperties" not in conjunct:
            asked.append(conjunct["additionalProperties"])
    return {"allOf": asked}
