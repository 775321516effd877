"""Reads the schemas of strict tools' arguments, for forms of calls whose arguments are not JSON.

llguidance makes grammars of schemas for JSON only. For other forms, Quire writes grammar rules for some keywords, and
raises UnsupportedKeywordError for the others. The schemas must have passed `checked_schema` (services/router/grammar),
and may have passed `exact_keys`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from services.router.grammar import ASSERTIONS, format_pattern, inexact_keys, literal_regex
from shared.grammar import GrammarError

_REFERENCE = re.compile(r'"\$ref": "#/\$defs/((?:[^"\\]|\\.)*)"')
_PREFIX = "#/$defs/"
# Limit for chains of definitions that consist of a reference only. It ends chains that form a circle.
_MAX_CHAIN = 32
# Number of schemas of one tool that are read. A schema counts each time that it is read.
_MAX_READ = 20_000
# Longest `minLength` and `maxLength`. A grammar counts characters by states of its lexer, whose number is limited.
_MAX_LENGTH = 500
# These keywords depend on one another.
_MEMBERS = frozenset({"properties", "patternProperties", "additionalProperties"})
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
_ESCAPE_OR_SLASH = re.compile(r"\\.|[/\n]", re.DOTALL)
_SLASHED = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
ANY_TEXT = "(?s:.*)"


class UnsupportedKeywordError(GrammarError):
    """Raised if Quire has no grammar rules for a keyword."""

    def __init__(self, keyword: str) -> None:
        super().__init__(f"this model's form of tool calls cannot enforce {keyword!r} in the schema")


class Definitions:
    """The definitions of a checked schema. Every reference points to one of them."""

    __slots__ = ("_needs", "_num_read", "_schemas")

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._needs: dict[str, list[str]] = {}
        self._num_read = 0

    def count(self) -> None:
        """Counts one schema that is read. Raises TooComplicatedError if there are too many."""
        self._num_read += 1
        if self._num_read > _MAX_READ:
            raise TooComplicatedError

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


class TooComplicatedError(GrammarError):
    """Raised if reading a schema takes too long."""

    def __init__(self) -> None:
        super().__init__("the schema is too complicated for this model's form of tool calls")


class NoValueError(GrammarError):
    """Raised if no value matches a schema."""

    def __init__(self) -> None:
        super().__init__("the schema requires a value, but no value matches it")


def assertions(schema: Any) -> dict[str, Any]:
    """Returns the keywords of a schema that affect which values match. Raises GrammarError."""
    if schema is True:
        return {}
    if schema is False:
        raise NoValueError
    if not isinstance(schema, Mapping):
        raise UnsupportedKeywordError("items")  # a list of schemas, in drafts before 2020-12
    return {name: value for name, value in schema.items() if name in ASSERTIONS}


def flat(schema: Any, definitions: Definitions) -> dict[str, Any]:
    """Returns the schema's assertions, with those of the schemas that it refers to in place of `$ref` and `allOf`,
    and without the effect of `exact_keys`. Raises GrammarError if they cannot be merged."""
    found = inexact_keys(assertions(schema))
    for _ in range(_MAX_CHAIN):
        definitions.count()
        if not found.keys() & {"$ref", "allOf"}:
            return found
        inner = [found.pop("$ref")] if "$ref" in found else []
        for part in [*map(definitions.resolve, inner), *found.pop("allOf", ())]:
            definitions.count()
            further = inexact_keys(assertions(part))
            if found.keys() & _MEMBERS and further.keys() & _MEMBERS:
                raise UnsupportedKeywordError("additionalProperties")
            for name, value in further.items():
                if name in found and json.dumps(found[name]) != json.dumps(value):
                    raise UnsupportedKeywordError(name)
                found[name] = value
    raise UnsupportedKeywordError("$ref")


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the types that a flat schema allows. Raises UnsupportedKeywordError if it has a keyword that does not
    apply to one type alone, such as `not`."""
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
        if not found.get("type", True):
            raise NoValueError
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


# Schema of an object with any members.
ANY_OBJECT = ObjectSchema({}, frozenset(), True, Definitions({}))


def listed_values(found: dict[str, Any]) -> list[Any] | None:
    """Returns the values that a flat schema allows, if `enum` or `const` lists them; None otherwise. Raises
    NoValueError if it allows none, and UnsupportedKeywordError if other keywords than `type` stand beside the list."""
    if not found.keys() & {"enum", "const"}:
        return None
    left = dict(found)
    types = types_of({"type": left.pop("type", ALL_TYPES)})
    values = left.pop("enum") if "enum" in left else [left.pop("const")]
    for keyword in left:
        raise UnsupportedKeywordError(keyword)
    allowed = [value for value in values if is_of(value, types)]
    if not allowed:
        raise NoValueError
    return allowed


def json_words(schema: Any, definitions: Definitions) -> list[str]:
    """Returns those of JSON's words null, true and false that surely match a schema. Raises TooComplicatedError."""
    words: dict[str, None] = {}
    with _unless_too_complicated():
        found = flat(schema, definitions)
        alternatives = found.pop("anyOf", None)
        if alternatives is None:
            return _words(found)
        for one in () if found else alternatives:
            with _unless_too_complicated():
                words |= dict.fromkeys(_words(flat(one, definitions)))
    return list(words)


@contextlib.contextmanager
def _unless_too_complicated() -> Iterator[None]:
    """Suppresses every GrammarError but TooComplicatedError."""
    try:
        yield
    except TooComplicatedError:
        raise
    except GrammarError:
        pass


def _words(found: dict[str, Any]) -> list[str]:
    """As json_words, for a flat schema. Raises GrammarError."""
    values = listed_values(found)
    if values is None:
        types = types_of(found)
        values = [value for value in (None, True, False) if is_of(value, types)]
    return [json.dumps(value) for value in values if isinstance(value, bool | None)]


def text_regex(schema: Mapping[str, Any]) -> str:
    """Returns a regular expression for the strings that keywords of `string` allow. Raises UnsupportedKeywordError."""
    kept = dict(schema)
    least, most, pattern = kept.pop("minLength", 0), kept.pop("maxLength", None), kept.pop("pattern", None)
    if pattern is None and kept.get("format") == "uuid":
        pattern = format_pattern(kept.pop("format"))
    for keyword in kept:
        raise UnsupportedKeywordError(keyword)
    has_lengths = least or most is not None
    if has_lengths and max(least, most or 0) > _MAX_LENGTH:
        raise UnsupportedKeywordError("maxLength" if most and most > _MAX_LENGTH else "minLength")
    if most is not None and most < least:
        raise NoValueError
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
    """Returns a part of a regular expression for use between slashes on one line."""
    return _ESCAPE_OR_SLASH.sub(lambda match: _SLASHED.get(match[0], match[0]), token)


@dataclass(frozen=True, slots=True)
class TextValue:
    """An argument that can be written as text instead of JSON, without escapes: a string, or the word null."""

    regex: str
    types: frozenset[str]

    @classmethod
    def of(cls, schema: Any, definitions: Definitions, end: str) -> TextValue | None:
        """Returns None if the argument can only be written as JSON: it can have other types, or has keywords that Quire
        has no regular expression for. `end`: text that ends the argument, so that it cannot contain this text. Raises
        NoValueError and TooComplicatedError."""
        try:
            found = _texts(schema, definitions)
        except (NoValueError, TooComplicatedError):
            raise
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
        parts = list(_possible(alternatives, definitions))
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


def _possible(alternatives: Iterable[Any], definitions: Definitions) -> Iterator[_Texts | None]:
    """Yields the texts of each alternative that a value can match. Raises NoValueError if there is none."""
    num_possible = 0
    for alternative in alternatives:
        with contextlib.suppress(NoValueError):
            yield _part(alternative, definitions)
            num_possible += 1
    if not num_possible:
        raise NoValueError


def _part(schema: Any, definitions: Definitions) -> _Texts | None:
    found = flat(schema, definitions)
    allowed = listed_values(found)
    if allowed is not None:
        if not all(value is None or isinstance(value, str) for value in allowed):
            return None
        return _Texts(choices=tuple(value for value in allowed if value is not None), has_null=None in allowed)
    names = types_of(found)
    if not names:
        raise NoValueError
    if not set(names) <= {"string", "null"}:
        return None
    return _Texts((text_regex(of_type(found, "string")),) if "string" in names else (), has_null="null" in names)
