"""Rewrites objects so that the key of a named member cannot be written with needless escapes.

llguidance lets the keys of additional members contain any escape of JSON, and compares them with the named members as
texts. So if `a` must be an integer and additional members are allowed, it accepts `{"\\u0061": "x"}`. It writes keys of
`patternProperties` in one way only. So a pattern takes the place of `additionalProperties`.

llguidance cannot intersect objects whose patterns overlap. Where the schema needs intersections, only additional
members of any value are rewritten, because their pattern is always the same. If such a schema has patterns of its own,
it stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from services.router.grammar.schema_rewrites.document import Schema
from services.router.grammar.schema_rewrites.keywords import with_inner
from services.router.grammar.schema_rewrites.values import other_strings
from shared.grammar import GrammarError

_EVERY_NAME = "^[\\s\\S]*$"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OF_OBJECTS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
_OF_OBJECTS |= {"minProperties", "maxProperties"}
# Keywords of schemas with which llguidance intersects the keywords beside them.
_INTERSECTED = frozenset({"anyOf", "oneOf", "$ref"})


def exact_keys(schema: Schema) -> Schema:
    """Returns a checked schema in which no key of a named member can have needless escapes, as far as llguidance's
    keywords allow. The result can be one that llguidance refuses. Raises GrammarError."""
    try:
        return _with_exact_keys(schema)
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    except (AttributeError, TypeError):
        raise GrammarError("it is not a schema: a keyword has a value of a wrong type") from None


def inexact_keys(schema: Schema) -> Schema:
    """Undoes what `exact_keys` did to the keywords of this schema. Leaves the schemas inside it as they are."""
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict) or len(patterns) != 1 or schema.get("additionalProperties") is not False:
        return schema
    [(pattern, additional)] = patterns.items()
    if pattern != _pattern(schema, additional):
        return schema
    others = {name: schema[name] for name in schema if name not in ("patternProperties", "additionalProperties")}
    return others if additional is True else others | {"additionalProperties": additional}


def _with_exact_keys(schema: Schema) -> Schema:
    everything = list(_all(schema))
    intersects = any("allOf" in one or (one.keys() & _INTERSECTED and one.keys() & _OF_OBJECTS) for one in everything)
    if intersects and any("patternProperties" in one for one in everything):
        return schema
    return _rewritten(schema, intersects)  # type: ignore[no-any-return]


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
    """Returns a pattern for the names of additional members, whose schema is `additional`. Returns None if a named
    member's name is too long for a pattern. If additional members can have any value, the pattern matches every name,
    and llguidance itself excludes the named members, but only as JSON usually writes them. Control characters can be
    written in several ways, so a pattern excludes names that contain one."""
    named = list(schema.get("properties", ()))
    is_any = additional is True or additional == {}
    if not named or (is_any and not any(_CONTROL.search(name) for name in named)):
        return _EVERY_NAME
    others = other_strings(named)
    return None if others is None else others["pattern"]
