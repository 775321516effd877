"""Which instances the grammar of a JSON schema accepts, and schemas drawn at random to compare it with a validator."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from services.router.grammar.structure import Structure, StructureKind
from services.router.grammar.trial import byte_tokenizer
from shared.grammar import compile_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MAX_ORDERS = 24


def matcher_of(schema: Any, tokenizer: LLTokenizer | None = None) -> LLMatcher:
    """Over bytes, unless told otherwise. Raises GrammarError."""
    grammar = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "").to_grammar()
    return compile_grammar(grammar, tokenizer or byte_tokenizer())


def accepts(matcher: LLMatcher, instance: Any) -> bool:
    """With its members in some order: a grammar has them in one."""
    return any(_matches(matcher, json.dumps(ordered, ensure_ascii=False)) for ordered in _orders(instance))


def _matches(matcher: LLMatcher, text: str) -> bool:
    fresh, tokens = matcher.deep_copy(), list(text.encode(errors="surrogatepass"))
    return bool(fresh.try_consume_tokens(tokens) == len(tokens) and fresh.is_accepting())


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.islice(itertools.permutations(value), _MAX_ORDERS):
            for members in _combinations([value[name] for name in names]):
                yield dict(zip(names, members, strict=True))
    elif isinstance(value, list):
        yield from _combinations(value)
    else:
        yield value


def _combinations(values: list[Any]) -> Iterator[list[Any]]:
    orders = (list(itertools.islice(_orders(value), 6)) for value in values)
    yield from map(list, itertools.islice(itertools.product(*orders), _MAX_ORDERS))


DEFINITIONS = {
    "x": {"properties": {"a": {"const": "a"}}, "required": ["a"]},
    "y": {"type": ["string", "array"], "minLength": 1},
}
_SMALL: tuple[Any, ...] = (
    True, False, {}, {"type": "string"}, {"type": "integer"}, {"type": ["string", "null"]}, {"const": "a"},
    {"enum": ["a", "b"]}, {"const": 1}, {"enum": [1, 2, None]}, {"minimum": 2}, {"exclusiveMaximum": 2},
    {"maxLength": 0}, {"minLength": 1}, {"type": "boolean"}, {"const": True}, {"const": ["a"]}, {"type": "object"},
    {"type": "array", "maxItems": 1}, {"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"},
)  # fmt: skip
_NAMES: tuple[Any, ...] = (
    {"pattern": "^a"}, {"enum": ["a", "b"]}, {"maxLength": 1}, {"const": "a"}, False, {"not": {"const": "a"}},
)  # fmt: skip
_KEYWORDS = (
    "type", "required", "properties", "properties", "not", "if", "oneOf", "anyOf", "allOf", "unevaluatedProperties",
    "unevaluatedItems", "contains", "prefixItems", "uniqueItems", "dependentSchemas", "dependentRequired",
    "propertyNames", "additionalProperties", "items", "maxItems", "minItems", "enum", "const", "patternProperties",
    "minProperties", "maxProperties",
)  # fmt: skip
_TYPES = ("object", "array", "string", "integer", ["object", "array"], ["integer", "string"])


def random_schema(chance: random.Random, depth: int) -> Any:
    if depth == 0:
        return chance.choice(_SMALL)
    schema: dict[str, Any] = {}
    for keyword in chance.choices(_KEYWORDS, k=chance.choice((1, 1, 2, 3))):
        schema |= _random_keyword(keyword, chance, depth - 1)
    return schema


def _random_keyword(keyword: str, chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample("abc", chance.choice((1, 1, 2)))
    match keyword:
        case "type":
            return {keyword: chance.choice(_TYPES)}
        case "required":
            return {keyword: names}
        case "properties":
            return {keyword: {name: random_schema(chance, depth) for name in names}}
        case "patternProperties":
            return {keyword: {chance.choice(("^a", "b$")): random_schema(chance, depth)}}
        case "if":
            branches = [name for name in ("then", "else") if chance.random() < 0.7]
            return {name: random_schema(chance, depth) for name in ("if", *branches)}
        case "oneOf" | "anyOf" | "allOf" | "prefixItems":
            return {keyword: [random_schema(chance, depth) for _ in range(chance.choice((1, 2, 2, 3)))]}
        case "uniqueItems":
            return {keyword: True}
        case "dependentSchemas":
            return {keyword: {names[0]: random_schema(chance, depth)}}
        case "dependentRequired":
            return {keyword: {"a": ["b"]}}
        case "propertyNames":
            return {keyword: chance.choice(_NAMES)}
        case "maxItems" | "minItems" | "minProperties" | "maxProperties":
            return {keyword: chance.randrange(4)}
        case "enum":
            return {keyword: chance.sample(["a", "b", 1, 2, None, True, ["a"], [], ["a", "b"]], 3)}
        case "const":
            return {keyword: chance.choice(["a", "b", 1, None, ["a"]])}
    return {keyword: random_schema(chance, depth) if chance.random() < 0.6 else chance.random() < 0.3}


INSTANCES: tuple[Any, ...] = (
    "", "a", "b", 0, 1, 2, 3, -1, 1.5, None, True, False, [], {}, ["a"], ["b"], [1], [1.5], [None], [True], [{}], [[]],
    ["a", "a"], ["a", "b"], ["b", "a"], [1, "a"], [1, 1], ["a", 1, None], ["a", "b", "a"], ["a", "b", 1], [True, False],
    [{"a": 1}], {"a": "a"}, {"a": "b"}, {"a": 1}, {"a": 2}, {"a": None}, {"a": {}}, {"a": []}, {"a": 1.5}, {"b": "a"},
    {"b": 1}, {"b": None}, {"c": "a"}, {"ab": 1}, {"d": 1}, {"a": "a", "b": "a"}, {"a": "b", "b": 1}, {"a": 1, "b": 2},
    {"a": "a", "c": 1}, {"b": 1, "c": "b"}, {"a": 1, "b": 1, "c": 1}, {"a": "a", "b": "b", "c": "a"},
    {"a": 1, "d": "a"}, {"a": "a", "ab": "a"},
)  # fmt: skip
