"""Keywords of JSON Schema that the library has not built, said with keywords that it has, where that is possible.

Each function changes one schema object in place, and leaves those in it to its caller. What cannot be said otherwise
stays, and the library refuses it. Sections are those of JSON Schema draft 2020-12, core (C) and validation (V).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

# Keywords whose schemas apply to the same value, and so evaluate its members and items, too (C 10.2).
_IN_PLACE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
    | {"$ref", "$dynamicRef", "$recursiveRef"}
)


def rewrite(schema: Schema) -> None:
    _unevaluated_properties(schema)
    _unevaluated_items(schema)
    _dependencies(schema)
    _property_names(schema)
    _settled_condition(schema)


def _always_applied(schema: Schema) -> list[Schema] | None:
    """The schema and all that apply with it, whatever the value; None where that depends on the value."""
    if schema.keys() & _IN_PLACE - {"allOf"}:
        return None
    applied = [schema]
    for inner in schema.get("allOf", ()):
        if not isinstance(inner, dict) or inner.keys() & _IN_PLACE:
            return None
        applied.append(inner)
    return applied


def _unevaluated_properties(schema: Schema) -> None:
    """C 11.3: members that no keyword here or in schemas applied in place has evaluated."""
    unevaluated = schema.get("unevaluatedProperties")
    if unevaluated is None:
        return
    if unevaluated is True or "additionalProperties" in schema:
        del schema["unevaluatedProperties"]
        return
    applied = _always_applied(schema)
    if applied is None:
        return
    del schema["unevaluatedProperties"]
    if any(inner.keys() & {"additionalProperties", "unevaluatedProperties"} for inner in applied):
        return
    for keyword in ("properties", "patternProperties"):
        names = {name: True for inner in applied for name in inner.get(keyword, ())}
        if names:
            schema[keyword] = names | schema.get(keyword, {})
    schema["additionalProperties"] = unevaluated


def _unevaluated_items(schema: Schema) -> None:
    """C 11.2"""
    unevaluated = schema.get("unevaluatedItems")
    if unevaluated is None:
        return
    if unevaluated is True or "items" in schema:
        del schema["unevaluatedItems"]
        return
    applied = _always_applied(schema)
    if applied is None or any("contains" in inner for inner in applied):
        return
    del schema["unevaluatedItems"]
    if any(inner.keys() & {"items", "unevaluatedItems"} for inner in applied):
        return
    prefix = list(schema.get("prefixItems", ()))
    longest = max(len(inner.get("prefixItems", ())) for inner in applied)
    if longest:
        schema["prefixItems"] = prefix + [True] * (longest - len(prefix))
    schema["items"] = unevaluated


def _dependencies(schema: Schema) -> None:
    """V 6.5.4, C 10.2.2.4, and `dependencies` of earlier drafts: the member is not there, or what it asks for holds."""
    conditions = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, asked in schema.pop(keyword, {}).items():
            there: Any = (
                {"required": [name, *asked]} if isinstance(asked, list) else {"allOf": [{"required": [name]}, asked]}
            )
            conditions.append({"anyOf": [{"properties": {name: False}}, there]})
    if conditions:
        schema["allOf"] = [*schema.get("allOf", ()), *conditions]


def _property_names(schema: Schema) -> None:
    """C 10.3.2.4: where no other keyword says which members there may be."""
    names = schema.get("propertyNames")
    if names is True or names == {}:
        del schema["propertyNames"]
        return
    if names is None or schema.keys() & ({"properties", "patternProperties", "additionalProperties"} | _IN_PLACE):
        return
    said: Schema = {}
    if isinstance(names, dict):
        match names:
            case {"pattern": pattern, **rest} if not rest:
                said["patternProperties"] = {pattern: True}
            case {"maxLength": int(longest), **rest} if not rest:
                said["patternProperties"] = {f"^[\\s\\S]{{0,{longest}}}$": True}
            case {"const": str(name), **rest} if not rest:
                said["properties"] = {name: True}
            case {"enum": list(listed), **rest} if not rest:
                said["properties"] = {name: True for name in listed if isinstance(name, str)}
            case _:
                return
    del schema["propertyNames"]
    schema |= said | {"additionalProperties": False}


def _settled_condition(schema: Schema) -> None:
    """C 10.2.2.1, where the condition is a boolean."""
    condition = schema.get("if")
    if isinstance(condition, bool):
        del schema["if"]
        then, otherwise = schema.pop("then", True), schema.pop("else", True)
        schema["allOf"] = [*schema.get("allOf", ()), then if condition else otherwise]
