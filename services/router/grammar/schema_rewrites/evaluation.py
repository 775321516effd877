"""Rewrites `unevaluatedProperties` and `unevaluatedItems` (JSON Schema core 11.3 and 11.2), which apply to members and
items that no other keyword evaluated.

If the schema has alternatives (such as `anyOf`), the instance decides which alternatives apply, and thereby which
members and items are evaluated. The result is therefore an `anyOf` with one option for each set of alternatives that
can apply together. An option also accepts instances to which more alternatives apply than those of its set. The
original schema accepts these instances, too, because additional alternatives can only evaluate additional members and
items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

from services.router.grammar.schema_rewrites.conditions import allowed_types, where_alone
from services.router.grammar.schema_rewrites.disjointness import disjoint
from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument, all_of, any_of, demand
from services.router.grammar.schema_rewrites.negation import negated

_LAST = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
_MAX_OPTIONS = 64
_MAX_CHOICES = 6
_MAX_DEPTH = 16
# Keywords that apply schemas to the instance itself. Members and items that these schemas evaluate count as evaluated.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "dependentSchemas", "dependencies")


@dataclass(frozen=True, slots=True)
class _Option:
    """Schemas that apply together, and the members and items that they evaluate."""

    schemas: tuple[Any, ...] = ()
    # Evaluated members, by name and by pattern.
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    # Evaluated items: the first `num_items` of the array, and each item that matches one of the schemas in `contained`,
    # which come from `contains`.
    num_items: int = 0
    contained: tuple[Any, ...] = ()
    # Whether all members, or all items, are evaluated.
    everything: bool = False

    def __and__(self, other: _Option) -> _Option:
        return _Option(
            self.schemas + other.schemas,
            self.names + other.names,
            self.patterns + other.patterns,
            max(self.num_items, other.num_items),
            self.contained + other.contained,
            self.everything or other.everything,
        )

    def rest(self, keyword: str, schema: Any) -> Any:
        """Returns a schema that applies `schema` to all members or items that are not evaluated."""
        if self.everything:
            return True
        if keyword == "unevaluatedItems":
            prefix = {"prefixItems": [True] * self.num_items} if self.num_items else {}
            return prefix | {"items": any_of([schema, *self.contained])}
        said: Schema = {}
        if self.names:
            said["properties"] = dict.fromkeys(self.names, True)
        if self.patterns:
            said["patternProperties"] = dict.fromkeys(self.patterns, True)
        return said | {"additionalProperties": schema}


class _UnknownError(Exception):
    """Raised if the evaluated members or items cannot be determined."""


def unevaluated(schema: Schema, document: SchemaDocument) -> None:
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        rest = schema.get(keyword)
        if rest is None:
            continue
        beside = {name: value for name, value in schema.items() if name != keyword}
        if rest is True or rest == {}:
            options = [_Option(everything=True)]
        else:
            try:
                options = _Evaluation(keyword, document).options(beside, 0)
            except _UnknownError:
                continue
        del schema[keyword]
        if all(option.everything for option in options):
            continue
        own = _own(schema)
        said = [
            (*(applied for applied in option.schemas if applied != own), option.rest(keyword, rest))
            for option in options
        ]
        for name in schema.keys() - own.keys():
            del schema[name]
        if len(said) == 1 and len(said[0]) == 1:
            # The only option has no keywords beyond the schema's own, so only `additionalProperties` or `items` has to
            # be added.
            schema |= {name: value for name, value in said[0][0].items() if name == _LAST[keyword]}
        else:
            demand(schema, any_of(map(all_of, said)))


def _own(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name not in _IN_PLACE}


class _Evaluation:
    def __init__(self, keyword: str, document: SchemaDocument) -> None:
        self._keyword = keyword
        self._document = document
        # Each of these two keywords evaluates all members, or all items, that the keywords outside of this pair have
        # not evaluated.
        self._last = {keyword, _LAST[keyword]}

    def options(self, schema: Any, depth: int) -> list[_Option]:
        """Returns the options of a schema. Every value that matches the schema matches all schemas of at least one
        option. Raises _UnknownError.
        """
        self._document.spend()
        if depth > _MAX_DEPTH or (isinstance(schema, dict) and isinstance(schema.get("items"), list)):
            raise _UnknownError
        if isinstance(schema, bool):
            return [_Option()] if schema else []
        if schema.keys() & self._last:
            return [_Option((schema,), everything=True)]
        found = [self._by_itself(_own(schema))]
        for choices in self._choices(schema, depth + 1):
            if len(found) * len(choices) > _MAX_OPTIONS:
                raise _UnknownError
            found = [option & choice for option in found for choice in choices]
        return found

    def _by_itself(self, schema: Schema) -> _Option:
        contained = (schema["contains"],) if "contains" in schema else ()
        return _Option(
            (schema,) if schema else (),
            tuple(schema.get("properties", ())),
            tuple(schema.get("patternProperties", ())),
            len(schema.get("prefixItems", ())),
            contained,
        )

    def _choices(self, schema: Schema, depth: int) -> Iterable[list[_Option]]:
        """Yields a list of options for each keyword entry that applies schemas to the instance itself, such as a schema
        of `allOf`, or all alternatives of an `anyOf`. An instance that matches the schema matches at least one option
        of each list."""
        for inner in schema.get("allOf", ()):
            yield self.options(inner, depth)
        if "$ref" in schema:
            target = self._document.resolve(schema["$ref"])
            if target is None:
                raise _UnknownError
            yield self.options(target, depth)
        if "anyOf" in schema:
            yield list(self._any_of(schema["anyOf"], depth))
        if "oneOf" in schema:
            others = where_alone(schema["oneOf"], _own(schema), allowed_types(schema), self._document)
            if others is None:
                raise _UnknownError
            yield [
                _Option(tuple(refused)) & option
                for one, refused in zip(schema["oneOf"], others, strict=True)
                for option in self.options(one, depth)
            ]
        if "if" in schema:
            yield self._if(schema, depth)
        for keyword in ("dependentSchemas", "dependencies"):
            for name, asked in schema.get(keyword, {}).items():
                has = {"type": "object", "required": [name]}
                there = [{"required": asked}] if isinstance(asked, list) else [asked]
                yield [_Option(({"properties": {name: False}},)), *self.options({"allOf": [has, *there]}, depth)]

    def _any_of(self, schemas: Sequence[Any], depth: int) -> Iterable[_Option]:
        """Yields the options of an `anyOf`: for each set of `schemas` that can apply together, the options of the set's
        `allOf`."""
        if len(schemas) > _MAX_CHOICES:
            raise _UnknownError
        sets = chain.from_iterable(combinations(schemas, size) for size in range(1, len(schemas) + 1))
        for together in sets:
            if not any(disjoint(one, other, self._document) for one, other in combinations(together, 2)):
                yield from self.options({"allOf": list(together)}, depth)

    def _if(self, schema: Schema, depth: int) -> list[_Option]:
        condition = schema["if"]
        if not schema.keys() & {"then", "else"}:
            return [*self.options(condition, depth), _Option()]
        unless = negated(condition, self._document, allowed_types(schema))
        if unless is None:
            raise _UnknownError
        met = self.options({"allOf": [condition, schema.get("then", True)]}, depth)
        otherwise = self.options(schema.get("else", True), depth)
        return met + [_Option((unless,)) & option for option in otherwise if unless is not False]
