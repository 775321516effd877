"""Whether two schemas have no instance in common, where that is plain to see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.router.grammar.schema_rewrites.document import TYPES, Schema, SchemaDocument, is_number, key
from services.router.grammar.schema_rewrites.values import type_of

_MAX_DEPTH = 6


def disjoint(left: Any, right: Any, document: SchemaDocument, depth: int = 0) -> bool:
    """False where it is not known."""
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
    """Whether no two of many apply together, by a member that all require and whose values differ, as the kinds of a
    union do. `beside`: what applies with each."""
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
    """What an instance can be at most, where these are a few; None where they are not."""
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
    """Schemas that apply together: itself, what it refers to, `allOf`; False where one does not allow anything."""
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
    """Among the values of one type."""
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
    """Those of one type that they list, comparable; None where none lists its values."""
    found: set[str] | None = None
    for conjunct in conjuncts:
        listed = _listed(conjunct)
        if listed is not None:
            keys = {key(value) for value in listed if type_of(value) == name}
            found = keys if found is None else found & keys
    return found


def _apart(schemas: list[Schema], lower: tuple[str, ...], upper: tuple[str, ...]) -> bool:
    """Whether some lower bound is above some upper one."""
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
    """What a member of this name has to match, at least."""
    asked = []
    for conjunct in conjuncts:
        if name in conjunct.get("properties", {}):
            asked.append(conjunct["properties"][name])
        elif "additionalProperties" in conjunct and "patternProperties" not in conjunct:
            asked.append(conjunct["additionalProperties"])
    return {"allOf": asked}
