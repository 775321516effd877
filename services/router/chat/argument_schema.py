"""Reads the schemas of strict tools' arguments, for forms of calls whose arguments are not JSON.

llguidance makes grammars of schemas for JSON only. For other forms, Quire writes grammar rules for some keywords, and
raises UnsupportedKeywordError for the others. The schemas must have passed `checked_schema` (services/router/grammar).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from services.router.grammar import ASSERTIONS, literal_regex
from shared.grammar import GrammarError

_REFERENCE = re.compile(r'"\$ref": "#/\$defs/((?:[^"\\]|\\.)*)"')
_PREFIX = "#/$defs/"
# Limit for chains of definitions that consist of a reference only. It ends chains that form a circle.
_MAX_CHAIN = 32
# Keywords that apply to instances of one type only.
_OF_TYPES: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "minItems", "maxItems", "prefixItems", "uniqueItems", "contains"}),
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames"})
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"},
}
# An integer is a number, too.
ALL_TYPES = tuple(name for name in _OF_TYPES if name != "integer")
# An escape, a character class, or another character of a regular expression.
_REGEX_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
ANY_TEXT = "(?s:.*)"


class UnsupportedKeywordError(GrammarError):
    """Raised if Quire has no grammar rules for a keyword."""

    def __init__(self, keyword: str) -> None:
        super().__init__(f"this model's form of tool calls cannot enforce its keyword {keyword!r}")


class Definitions:
    """The definitions of a checked schema. Every reference points to one of them."""

    __slots__ = ("_needs", "_schemas")

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._needs: dict[str, list[str]] = {}

    def resolve(self, reference: str) -> Any:
        return self._schemas[_name(reference.removeprefix(_PREFIX))]

    def of(self, schema: Any) -> dict[str, Any]:
        """Returns the definitions that a schema refers to, directly or through others."""
        found: dict[str, Any] = {}
        left = _references(schema)
        while left:
            name = left.pop()
            if name in self._schemas and name not in found:
                found[name] = self._schemas[name]
                if name not in self._needs:
                    self._needs[name] = _references(found[name])
                left += self._needs[name]
        return found


def _references(schema: Any) -> list[str]:
    """Returns the names of the definitions that a schema refers to itself."""
    return sorted({_name(json.loads(f'"{match[1]}"')) for match in _REFERENCE.finditer(json.dumps(schema))})


def _name(reference: str) -> str:
    """Returns the name of a definition. `reference`: a JSON pointer in a URI, without `_PREFIX`."""
    return unquote(reference).replace("~1", "/").replace("~0", "~")


def assertions(schema: Any) -> dict[str, Any]:
    """Returns the keywords of a schema that affect which instances are valid. Raises GrammarError if none is."""
    if schema is False:
        raise GrammarError("one of its arguments can have no value")
    return {} if schema is True else {name: value for name, value in schema.items() if name in ASSERTIONS}


def flat(schema: Any, definitions: Definitions) -> dict[str, Any]:
    """Returns the schema's assertions, with those of the definition that it refers to in place of `$ref`."""
    found = assertions(schema)
    for _ in range(_MAX_CHAIN):
        if not found.keys() & {"$ref", "allOf"}:
            return found
        inner = [found.pop("$ref")] if "$ref" in found else []
        for part in [*map(definitions.resolve, inner), *found.pop("allOf", ())]:
            for name, value in assertions(part).items():
                if found.setdefault(name, value) != value:
                    raise UnsupportedKeywordError("allOf" if not inner else "$ref")
    raise UnsupportedKeywordError("$ref")


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the types that a flat schema allows, and checks that all other keywords apply to these types alone."""
    named = schema.get("type", ALL_TYPES)
    types = (named,) if isinstance(named, str) else tuple(named)
    for keyword in schema:
        if keyword != "type" and not any(keyword in of_type for of_type in _OF_TYPES.values()):
            raise UnsupportedKeywordError(keyword)
    return types


def is_of(value: Any, types: Container[str]) -> bool:
    """Whether a value has one of the types."""
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int() | float():
            return "number" in types or ("integer" in types and value == int(value))
        case str():
            return "string" in types
    return ("array" if isinstance(value, list) else "object") in types


def of_type(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the keywords of a flat schema that apply to instances of one type."""
    return {keyword: value for keyword, value in schema.items() if keyword in _OF_TYPES[name]}


@dataclass(frozen=True, slots=True)
class ObjectSchema:
    """Schema of an object whose members a grammar can write one after another, in the order of `properties`."""

    properties: Mapping[str, Any]
    required: frozenset[str]
    # Schema of members that `properties` does not name. False: there are none.
    additional: Any
    definitions: Definitions

    @classmethod
    def of(cls, schema: Any, definitions: Definitions) -> ObjectSchema:
        """Raises UnsupportedKeywordError."""
        found = flat(schema, definitions)
        if "object" not in types_of(found):
            raise UnsupportedKeywordError("type")
        kept = of_type(found, "object")
        properties, required = kept.pop("properties", {}), frozenset(kept.pop("required", ()))
        additional = kept.pop("additionalProperties", True)
        for keyword in kept:
            raise UnsupportedKeywordError(keyword)
        if not required <= properties.keys():
            raise UnsupportedKeywordError("required")
        return cls(properties, required, additional, definitions)

    @classmethod
    def of_tool(cls, schema: Mapping[str, Any]) -> ObjectSchema:
        """Returns the schema of a tool's arguments (`call_grammar.Schemas`)."""
        return cls.of({"$ref": schema["$ref"]}, Definitions(schema["$defs"]))

    def member(self, name: str) -> Any:
        """Returns the schema of a member; False if there can be none of this name."""
        return self.properties.get(name, self.additional)


def text_regex(schema: Mapping[str, Any]) -> str:
    """Returns a regular expression for the strings that keywords of `string` allow. Raises UnsupportedKeywordError."""
    kept = dict(schema)
    least, most, pattern = kept.pop("minLength", 0), kept.pop("maxLength", None), kept.pop("pattern", None)
    for keyword in kept:
        raise UnsupportedKeywordError(keyword)
    has_lengths = least or most is not None
    if pattern is None:
        return f"(?s:.){{{least},{'' if most is None else most}}}" if has_lengths else ANY_TEXT
    if has_lengths:
        raise UnsupportedKeywordError("pattern")
    return _searched(pattern)


def _searched(pattern: str) -> str:
    """Returns a regular expression for the texts in which `pattern` occurs, in the notation of a grammar: it stands
    between slashes. Raises UnsupportedKeywordError if the pattern has an anchor that is neither its beginning nor its
    end."""
    tokens = _REGEX_TOKEN.findall(pattern)
    begins, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    inner = tokens[1 if begins else 0 : len(tokens) - 1 if ends else len(tokens)]
    depth = 0
    for token in inner:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token in ("^", "$", r"\b", r"\B") or (token == "|" and not depth and (begins or ends)):
            raise UnsupportedKeywordError("pattern")
    written = "".join(_slashed(token) for token in inner)
    return f"{'' if begins else ANY_TEXT}(?:{written}){'' if ends else ANY_TEXT}"


def _slashed(token: str) -> str:
    return token.replace("\n", r"\n") if token.startswith("\\") else token.replace("/", r"\/").replace("\n", r"\n")


@dataclass(frozen=True, slots=True)
class TextValue:
    """How an argument is written as bare text, without quotes: a string, or the word null."""

    regex: str
    types: frozenset[str]

    @classmethod
    def of(cls, schema: Any, definitions: Definitions, end: str) -> TextValue | None:
        """Returns None if the argument is written as JSON: it can have other types, or has keywords that Quire has no
        regular expression for. `end`: text that ends the argument, so that it cannot contain this text."""
        try:
            found = _texts(schema, definitions)
        except GrammarError:
            return None
        if found is None or any(end in choice for choice in found.choices):
            return None
        regexes = [*found.regexes, *map(literal_regex, found.choices), *(["null"] if found.has_null else [])]
        types = frozenset({"string", "null"} if found.has_null else {"string"})
        return cls("|".join(f"(?:{regex})" for regex in regexes) if len(regexes) > 1 else regexes[0], types)


@dataclass(frozen=True, slots=True)
class _Texts:
    regexes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    has_null: bool = False


def _texts(schema: Any, definitions: Definitions) -> _Texts | None:
    """Returns None if the schema allows values other than strings and null, or no strings."""
    found = flat(schema, definitions)
    if not found:
        return _Texts((ANY_TEXT,))
    alternatives = found.pop("anyOf", None)
    if alternatives is not None:
        if found:
            return None
        parts = [_part(one, definitions) for one in alternatives]
        texts = [part for part in parts if part is not None]
        if len(texts) < len(parts):
            return None
        merged = _Texts(
            tuple(regex for part in texts for regex in part.regexes),
            tuple(choice for part in texts for choice in part.choices),
            any(part.has_null for part in texts),
        )
    else:
        one = _part(found, definitions)
        if one is None:
            return None
        merged = one
    return merged if merged.regexes or merged.choices else None


def _part(schema: Any, definitions: Definitions) -> _Texts | None:
    found = flat(schema, definitions)
    if found.keys() & {"enum", "const"}:
        types = types_of({"type": found.pop("type", ALL_TYPES)})
        values = found.pop("enum", None)
        if "const" in found:
            values = [found.pop("const")] if values is None else None
        if found or values is None or not all(value is None or isinstance(value, str) for value in values):
            return None
        allowed = [value for value in values if is_of(value, types)]
        return _Texts(choices=tuple(value for value in allowed if value is not None), has_null=None in allowed)
    names = types_of(found)
    if not set(names) <= {"string", "null"}:
        return None
    return _Texts((text_regex(of_type(found, "string")),) if "string" in names else (), has_null="null" in names)
