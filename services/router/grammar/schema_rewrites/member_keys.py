"""Rewrites objects so that the key of a named member cannot be written with needless escapes.

llguidance lets the keys of additional members contain any escape of JSON, and compares them with the named members as
texts. So if `a` must be an integer and additional members are allowed, it accepts `{"\\u0061": "x"}`. It writes keys of
`patternProperties` in one way only. So a pattern takes the place of `additionalProperties`.

llguidance cannot intersect objects whose patterns differ. Where the schema needs intersections, only additional members
of any value are rewritten, because their pattern is always the same. If such a schema has patterns of its own, it stays
as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.router.grammar.schema_rewrites.document import Schema
from services.router.grammar.schema_rewrites.keywords import with_inner
from services.router.grammar.schema_rewrites.values import other_strings
from shared.grammar import GrammarError

_EVERY_NAME = "^[\\s\\S]*$"
_OF_OBJECTS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
_OF_OBJECTS |= {"minProperties", "maxProperties"}
# Keywords of schemas with which llguidance intersects the keywords beside them.
_INTERSECTED = frozenset({"anyOf", "oneOf", "$ref"})


def exact_keys(schema: Schema) -> Schema:
    """Returns a copy of a checked schema with the rewritten objects. Raises GrammarError."""
    try:
        return _with_exact_keys(schema)
    except (AttributeError, TypeError):
        raise GrammarError("it is not a schema: a keyword has a value of a wrong type") from None


def _with_exact_keys(schema: Schema) -> Schema:
    everything = list(_all(schema))
    intersects = any("allOf" in one or (one.keys() & _INTERSECTED and one.keys() & _OF_OBJECTS) for one in everything)
    if intersects and any("patternProperties" in one for one in everything):
        return schema
    return _rewritten(schema, intersects)  # type: ignore[no-any-return]


def additional_members(schema: Schema) -> Any:
    """Returns the schema of the members that `properties` does not name. Undoes what `exact_keys` does to
    this object. Returns None if the object has other patterns."""
    patterns = schema.get("patternProperties", {})
    if not patterns:
        return schema.get("additionalProperties", True)
    [(pattern, additional), *others] = patterns.items()
    is_ours = not others and schema.get("additionalProperties") is False and pattern == _pattern(schema, additional)
    return additional if is_ours else None


def _all(schema: Any) -> Iterator[Schema]:
    if not isinstance(schema, dict):
        return
    inner: list[Any] = []
    with_inner(schema, inner.append)
    yield schema
    for one in inner:
        yield from _all(one)


def _rewritten(schema: Any, intersects: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    changed = with_inner(schema, lambda inner: _rewritten(inner, intersects))
    additional = changed.get("additionalProperties", True)
    has_names = changed.get("properties") or changed.get("required")
    if "patternProperties" in changed or additional is False or not has_names:
        return changed
    pattern = _pattern(changed, additional)
    if pattern is None or (intersects and pattern != _EVERY_NAME):
        return changed
    changed.pop("additionalProperties", None)  # so that the two stand side by side: see objects.py
    return changed | {"patternProperties": {pattern: additional}, "additionalProperties": False}


def _pattern(schema: Schema, additional: Any) -> str | None:
    """Returns a pattern for the names of additional members, whose schema is `additional`. None if there is none. If
    any value is allowed, the pattern matches the other names, too, which does no harm."""
    named = list(schema.get("properties", ()))
    if additional is True or additional == {} or not named:
        return _EVERY_NAME
    others = other_strings(named)
    return None if others is None else others["pattern"]
