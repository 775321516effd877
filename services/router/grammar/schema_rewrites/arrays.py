"""Rewrites `contains` and `uniqueItems`, for arrays whose maximum length or possible items are known.

No keyword that llguidance implements can express either of them for arrays of any length.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

from services.router.grammar.schema_rewrites.disjointness import disjoint, finite_values
from services.router.grammar.schema_rewrites.document import TYPES, Schema, SchemaDocument, any_of, demand, key
from services.router.grammar.schema_rewrites.keywords import ASSERTIONS
from services.router.grammar.schema_rewrites.negation import negated
from services.router.grammar.schema_rewrites.values import type_of

_NO_ARRAY = {"type": [name for name in TYPES if name != "array"]}
# Maximum number of alternatives that replace `contains`: one for each set of positions that matching items can have.
_MAX_SETS = 64
# Maximum number of arrays in the `enum` that replaces `uniqueItems`.
_MAX_ARRAYS = 400


def contains(schema: Schema, document: SchemaDocument) -> None:
    """Rewrites `contains`, `minContains` and `maxContains` (JSON Schema core 10.3.1.3, validation 6.4.4 and 6.4.5)."""
    if "contains" not in schema:
        for keyword in ("minContains", "maxContains"):
            schema.pop(keyword, None)
        return
    if isinstance(schema.get("items"), list):
        return
    contained, least, most = schema["contains"], schema.get("minContains", 1), schema.get("maxContains")
    if not _is_count(least) or not (most is None or _is_count(most)):
        return
    said = _counted(contained, least, most, schema, document)
    if said is not None:
        for keyword in ("contains", "minContains", "maxContains"):
            schema.pop(keyword, None)
        demand(schema, said)


def _counted(contained: Any, least: int, most: int | None, schema: Schema, document: SchemaDocument) -> Any:
    """Returns a schema that requires `least` to `most` items of an array to match `contained`; None if no supported
    keywords express that. `schema`: the schema that has the `contains`."""
    if most is not None and most < least:
        return _NO_ARRAY
    if contained is True or contained == {}:
        return {"minItems": least} | ({} if most is None else {"maxItems": most})
    if least == 0 and most is None:
        return True
    if contained is False:
        return _NO_ARRAY if least else True
    if most == 0:
        none_such = negated(contained, document)
        return None if none_such is None else {"items": none_such}
    longest = _longest(schema)
    if longest is not None:
        return _at_places(contained, least, most, longest, document)
    num_first = len(schema.get("prefixItems", ()))
    if most is None and key(schema.get("items", True)) == key(contained):
        # All items after `prefixItems` match, so every long enough array has enough matching items.
        shorter = _at_places(contained, least, most, num_first + least - 1, document)
        return None if shorter is None else any_of([{"minItems": num_first + least}, shorter])
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _longest(schema: Schema) -> int | None:
    """Returns the maximum number of items that the schema allows; None if there is no limit."""
    limits = [schema["maxItems"]] if _is_count(schema.get("maxItems")) else []
    if schema.get("items") is False:
        limits.append(len(schema.get("prefixItems", ())))
    return min(limits, default=None)


def _at_places(contained: Any, least: int, most: int | None, longest: int, document: SchemaDocument) -> Any:
    """Returns a schema that requires `least` to `most` items of an array to match `contained`. The array has at most
    `longest` items. The schema has one alternative for each set of positions that the matching items can have. Returns
    None if there are too many alternatives, or if `contained` cannot be negated.
    """
    if longest > _MAX_SETS:
        return None
    sizes = [least] if most is None else range(least, min(most, longest) + 1)
    if sum(comb(longest, size) for size in sizes) > _MAX_SETS:
        return None
    other = True if most is None else negated(contained, document)
    if other is None:
        return None
    options = []
    for size in sizes:
        for places in combinations(range(longest), size):
            length = max(places, default=-1) + 1
            shown = range(length if most is None else longest)
            options.append(
                {"prefixItems": [contained if place in places else other for place in shown], "minItems": length}
            )
    return any_of(options or [_NO_ARRAY])


def unique_items(schema: Schema, document: SchemaDocument) -> None:
    """Rewrites `uniqueItems` (JSON Schema validation 6.4.3)."""
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    if schema.get("uniqueItems") is not True or isinstance(schema.get("items"), list):
        return
    longest, first, others = _longest(schema), schema.get("prefixItems", []), schema.get("items", True)
    if longest is not None and longest <= len(first):
        different = all(disjoint(one, other, document) for one, other in combinations(first[:longest], 2))
    else:
        different = longest is not None and longest <= 1
    if different:
        del schema["uniqueItems"]
        return
    limit = len(first) + _MAX_ARRAYS if longest is None else min(longest, len(first) + _MAX_ARRAYS)
    items = [*first[:limit], *[others] * (limit - len(first))]
    values = [finite_values(inner, document) for inner in items[: len(first) + 1]]
    if None in values:
        return
    values += values[-1:] * (len(items) - len(values))
    arrays = _of_different([{key(value): value for value in few or ()} for few in values])
    if arrays is None:
        return
    document.spend(sum(map(len, arrays)))
    del schema["uniqueItems"]
    if all(_is_listed(inner, document) for inner in items[: len(first) + 1]):
        # The list has only arrays that satisfy the four keywords below. If the keywords stayed, llguidance would check
        # each array of the list against them again.
        least, most = schema.pop("minItems", 0), schema.pop("maxItems", limit)
        arrays = [array for array in arrays if least <= len(array) <= most]
        schema.pop("prefixItems", None)
        schema.pop("items", None)
    demand(schema, any_of([{"enum": arrays} if arrays else False, _NO_ARRAY]))


def _is_listed(schema: Any, document: SchemaDocument) -> bool:
    """Returns whether the schema certainly accepts every value that `finite_values` returns for it."""
    if isinstance(schema, dict) and "$ref" in schema and len(schema) == 1:
        schema = document.resolve(schema["$ref"])
    if not isinstance(schema, dict):
        return False
    match {keyword: value for keyword, value in schema.items() if keyword in ASSERTIONS}:
        case {"const": _, **rest} | {"enum": _, **rest} if not rest:
            return True
        case {"enum": list(values), "type": str(name), **rest} if not rest:
            return all(type_of(value) == name for value in values)
        case {"type": "boolean" | "null", **rest} if not rest:
            return True
    return False


def _of_different(values: list[dict[str, Any]]) -> list[list[Any]] | None:
    """Returns all arrays, of any length up to len(values), whose items all differ; None if there are more than
    _MAX_ARRAYS. `values`: for each position, a dict of the possible values; `key(value)` is a value's key."""
    beginnings: list[tuple[str, ...]] = [()]
    found = [*beginnings]
    for length, of_place in enumerate(values):
        # `found` and at least `len(of_place) - length` continuations of each beginning are a lower bound of the result.
        if len(found) + len(beginnings) * (len(of_place) - length) > _MAX_ARRAYS:
            return None
        beginnings = [(*before, value) for before in beginnings for value in of_place if value not in before]
        found += beginnings
        if len(found) > _MAX_ARRAYS:
            return None
        if not beginnings:
            break
    return [[values[place][value] for place, value in enumerate(array)] for array in found]
