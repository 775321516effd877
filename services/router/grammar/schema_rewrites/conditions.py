"""Rewrites `not` (JSON Schema core 10.2.1.4), `if` (core 10.2.2.1), and `oneOf` (core 10.2.1.3) whose options can
overlap."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from services.router.grammar.schema_rewrites.disjointness import disjoint, told_apart
from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument, all_of, any_of, demand
from services.router.grammar.schema_rewrites.negation import ALL_TYPES, negated
from services.router.grammar.schema_rewrites.values import type_of


def conditions(schema: Schema, document: SchemaDocument) -> None:
    if "if" in schema and not schema.keys() & {"then", "else"}:
        del schema["if"]
    if "if" not in schema:
        schema.pop("then", None)
        schema.pop("else", None)
    if not schema.keys() & {"not", "if", "oneOf"}:
        return
    types = allowed_types(schema)
    _not(schema, types, document)
    _if(schema, types, document)
    _one_of(schema, types, document)


def allowed_types(schema: Schema) -> frozenset[str]:
    """Returns the types that `type`, `enum` and `const` allow. If they include `integer` but not `number`, integers are
    the only allowed numbers.
    """
    types = ALL_TYPES
    given = schema.get("type")
    if given is not None:
        names = frozenset({given} if isinstance(given, str) else given)
        types = names - {"integer"} if "number" in names else names
    if isinstance(schema.get("enum"), list):
        types = _those_of(schema["enum"], types)
    if "const" in schema:
        types = _those_of([schema["const"]], types)
    return types


def _those_of(values: list[Any], types: frozenset[str]) -> frozenset[str]:
    found = {type_of(value) for value in values}
    return frozenset(name for name in types if ("number" if name == "integer" else name) in found)


def _not(schema: Schema, types: frozenset[str], document: SchemaDocument) -> None:
    if "not" not in schema:
        return
    said = negated(schema["not"], document, types)
    if said is not None:
        del schema["not"]
        demand(schema, said)


def _if(schema: Schema, types: frozenset[str], document: SchemaDocument) -> None:
    if "if" not in schema:
        return
    condition, then, otherwise = schema["if"], schema.get("then", True), schema.get("else", True)
    unless: Any = None
    if then is not True or not isinstance(otherwise, bool):
        unless = negated(condition, document, types)
        if unless is None:
            return
    for keyword in ("if", "then", "else"):
        schema.pop(keyword, None)
    if then is True:
        demand(schema, any_of([condition, otherwise]))
    elif otherwise is True:
        demand(schema, any_of([unless, then]))
    else:
        demand(schema, any_of([all_of([condition, then]), all_of([unless, otherwise])]))


def _one_of(schema: Schema, types: frozenset[str], document: SchemaDocument) -> None:
    options = schema.get("oneOf")
    if not isinstance(options, list) or not options:
        return
    beside = {keyword: value for keyword, value in schema.items() if keyword != "oneOf"}
    others = where_alone(options, beside, types, document)
    if others is not None:
        del schema["oneOf"]
        demand(schema, any_of(all_of([option, *refused]) for option, refused in zip(options, others, strict=True)))


def where_alone(
    options: list[Any], beside: Any, types: frozenset[str], document: SchemaDocument
) -> list[list[Any]] | None:
    """Returns, for each option of a `oneOf`, the schemas that a value must match besides the option, so that it matches
    no other option. Returns None if the keywords that llguidance supports cannot express these schemas. `beside`: the
    other keywords of the schema that has the `oneOf`. `types`: the types that a value can have."""
    if told_apart(options, beside, document):
        return [[] for _ in options]
    found: list[list[Any]] = [[] for _ in options]
    for one, other in combinations(range(len(options)), 2):
        if not disjoint({"allOf": [beside, options[one]]}, options[other], document):
            for here, there in ((one, other), (other, one)):
                refused = negated(options[there], document, types)
                if refused is None:
                    return None
                found[here].append(refused)
    return found
