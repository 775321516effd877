"""Negates a schema: makes a schema that accepts exactly the values that the schema refuses.

A schema refuses a value if one of its keywords refuses it. Most keywords refuse only values of one type: the negation
of `{minimum: 3}` requires a number below 3. So the negation is an `anyOf` with one schema for each keyword. Each of
these schemas accepts the values that its keyword refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from services.router.grammar.schema_rewrites.document import TYPES, Schema, SchemaDocument, all_of, any_of, is_number
from services.router.grammar.schema_rewrites.keywords import ASSERTIONS
from services.router.grammar.schema_rewrites.values import all_but, type_of

ALL_TYPES = frozenset(TYPES)
_NUMBERS = frozenset({"number", "integer"})
_MAX_DEPTH = 32
# Maximum number of schemas and values that one negation can visit.
_MAX_WORK = 2_000
# Maximum number of options of a `oneOf` that can be negated. It is low, because the negation has a schema for every
# pair of options.
_MAX_ONE_OF = 8
# For each keyword: the type to which it applies, the keyword that negates it, and the difference between the values of
# the two keywords. For example, `minLength: 3` is negated by `maxLength: 2`.
_COMPLEMENTS = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
}


class _InexpressibleError(Exception):
    """Raised if no supported keyword expresses the negation."""


def negated(schema: Any, document: SchemaDocument, allowed: frozenset[str] = ALL_TYPES) -> Any:
    """Returns the negation of `schema`: a schema that accepts a value of one of the `allowed` types if `schema` refuses
    the value. Returns None if supported keywords cannot express the negation. The result need not be right for values
    of other types. If `allowed` has `integer` but not `number`, integers are the only allowed numbers."""
    negation = _Negation(document)
    try:
        said = negation.of(schema, allowed, 0)
    except _InexpressibleError:
        document.spend(negation.work // 8)
        return None
    document.spend(negation.work)
    return said


class _Negation:
    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        # References that are being followed. Following one of them again would never end.
        self._open: list[str] = []
        self.work = 0

    def of(self, schema: Any, allowed: frozenset[str], depth: int) -> Any:
        self.work += 1
        if isinstance(schema, bool):
            return not schema
        if depth > _MAX_DEPTH or self.work > _MAX_WORK:
            raise _InexpressibleError
        if self._document.ignores_beside_ref and "$ref" in schema and schema.keys() & ASSERTIONS - {"$ref"}:
            raise _InexpressibleError
        refused: list[Any] = []
        for keyword, value in schema.items():
            if keyword in ASSERTIONS:
                refused += self._refused(keyword, value, schema, allowed, depth + 1)
        return any_of(option for option in refused if self._may_apply(option, allowed))

    @staticmethod
    def _may_apply(option: Any, allowed: frozenset[str]) -> bool:
        if not isinstance(option, dict) or "type" not in option:
            return True
        names = {option["type"]} if isinstance(option["type"], str) else set(option["type"])
        return bool(names & allowed) or bool(names & _NUMBERS and allowed & _NUMBERS)

    def _refused(self, keyword: str, value: Any, schema: Schema, allowed: frozenset[str], depth: int) -> Sequence[Any]:
        """Returns schemas that together accept the values that `keyword` refuses. Raises _InexpressibleError."""
        match keyword:
            case "type":
                return [_other_types({value} if isinstance(value, str) else set(value), allowed)]
            case "const":
                return self._other_values([value], allowed)
            case "enum" if isinstance(value, list):
                return self._other_values(value, allowed)
            case "required" if isinstance(value, list):
                return [{"type": "object", "properties": {name: False}} for name in value]
            case "properties":
                return [
                    {"type": "object", "properties": {name: self.of(inner, ALL_TYPES, depth)}, "required": [name]}
                    for name, inner in value.items()
                    if inner is not True and inner != {}
                ]
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                options: list[Any] = []
                for name, asked in value.items():
                    there = {"type": "object", "required": [name]}
                    if isinstance(asked, list):
                        options += [there | {"properties": {other: False}} for other in asked]
                    else:
                        options.append(there | {"allOf": [self.of(asked, ALL_TYPES, depth)]})
                return options
            case "prefixItems":
                return [
                    {"type": "array", "prefixItems": [True] * place + [self.of(inner, ALL_TYPES, depth)]}
                    | {"minItems": place + 1}
                    for place, inner in enumerate(value)
                    if inner is not True and inner != {}
                ]
            case "items" if value is False:
                return [{"type": "array", "minItems": len(schema.get("prefixItems", ())) + 1}]
            case "contains" if not schema.keys() & {"minContains", "maxContains"}:
                return [{"type": "array", "items": self.of(value, ALL_TYPES, depth)}]
            case "allOf":
                return [self.of(inner, allowed, depth) for inner in value]
            case "anyOf":
                return [all_of(self.of(inner, allowed, depth) for inner in value)]
            case "oneOf" if len(value) <= _MAX_ONE_OF:
                both = [all_of(two) for two in combinations(value, 2)]
                return [all_of(self.of(inner, allowed, depth) for inner in value), *both]
            case "not":
                return [value]
            case "if":
                then, otherwise = schema.get("then", True), schema.get("else", True)
                return [
                    all_of([value, self.of(then, allowed, depth)]),
                    all_of([self.of(value, allowed, depth), self.of(otherwise, allowed, depth)])
                    if otherwise is not True
                    else False,
                ]
            case "then" | "else":
                return []  # handled with `if`; without `if` they have no effect
            case "$ref":
                target = self._document.resolve(value)
                if target is not None and value not in self._open:
                    self._open.append(value)
                    said = self.of(target, allowed, depth)
                    self._open.pop()
                    return [said]
            case "minContains" | "maxContains" if "contains" not in schema:
                return []
            case "uniqueItems" if value is False:
                return []
            case "patternProperties" if all(inner is True or inner == {} for inner in value.values()):
                return []
            case "items" | "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" | "propertyNames":
                if value is True or value == {}:
                    return []
        if keyword in _COMPLEMENTS and is_number(value):
            name, complement, difference = _COMPLEMENTS[keyword]
            if complement.startswith("max") and difference and value + difference < 0:
                return []  # no value is shorter
            return [{"type": name, complement: value + difference}]
        raise _InexpressibleError

    def _other_values(self, values: list[Any], allowed: frozenset[str]) -> Sequence[Any]:
        by_type: dict[str, list[Any]] = {}
        for value in values:
            by_type.setdefault(type_of(value), []).append(value)
        self.work += len(values)
        options: list[Any] = []
        untouched = allowed - by_type.keys() - ({"integer"} if "number" in by_type else set())
        if untouched:
            options.append({"type": sorted(untouched)})
        for name, of_type in by_type.items():
            if self._may_apply({"type": name}, allowed):
                others = all_but(of_type, name)
                if others is None:
                    raise _InexpressibleError
                options.append(others)
        return options


def _other_types(types: set[str], allowed: frozenset[str]) -> Any:
    if not types <= {*TYPES, "integer"}:
        raise TypeError("there is no such type")
    others = allowed - types
    if "number" in types:
        others -= {"integer"}
    if "number" in others and "integer" in types:
        raise _InexpressibleError  # JSON Schema has no type for a number that is not an integer
    return {"type": sorted(others)} if others else False
