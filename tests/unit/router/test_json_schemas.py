"""Schemas that are taken have valid outputs only; all others are refused, and the keyword is named.

Outputs are sampled as a model with random weights would write them (benchmarks/json_schema.py).
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from benchmarks.json_schema import Sampler, suite
from services.router.grammar.schema_rewrites.checked import checked_schema
from services.router.grammar.structure import Structure, StructureKind
from services.router.grammar.trial import byte_tokenizer
from shared.grammar import GrammarError, compile_grammar

ROOT = Path(__file__).parents[3]
BYTES = byte_tokenizer()
SUITE = ROOT.parent / "shared" / "schema" / "json-schema-test-suite-draft2020-12"

ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "number": {"type": "integer"}}}
SUPPORTED: dict[str, Any] = {
    "anything": True,
    "types": {"type": ["integer", "null", "boolean"]},
    "objects": ADDRESS | {"required": ["street"], "additionalProperties": {"type": "null"}},
    "closed objects": ADDRESS | {"additionalProperties": False, "required": ["number"]},
    "patterns of names": {"type": "object", "patternProperties": {"^n_[a-z]+$": {"type": "integer"}}},
    "arrays": {"type": "array", "prefixItems": [{"type": "null"}], "items": ADDRESS, "minItems": 2, "maxItems": 4},
    "strings": {"type": "string", "minLength": 3, "maxLength": 5},
    "patterns": {"type": "string", "pattern": "^[0-9]{2}-[a-c]+$"},
    "patterns in between": {"type": "string", "pattern": "ab"},
    "integers": {"type": "integer", "minimum": -7, "exclusiveMaximum": 40, "multipleOf": 3},
    "numbers": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 99},
    "values": {"enum": [1, "two", None, [3, {"four": 5}]]},
    "one value": {"const": {"ä": ["\n", '"']}},
    "any of": {"anyOf": [{"type": "string", "maxLength": 2}, ADDRESS]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "one of disjoint ones": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "trees": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/node"}},
                "required": ["value"],
                "additionalProperties": False,
            }
        },
    },
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uuid", "hostname", "uri")
    },
    "keywords that say nothing": {
        "type": "array", "minItems": 1.0, "maxItems": 2, "uniqueItems": False, "minContains": 3, "then": {"not": {}},
        "title": "t", "description": "d", "default": [], "examples": [1],
    },
}  # fmt: skip
# Said otherwise for the library: services/router/schema_rewrites, test_schema_rewrites.py.
REWRITTEN: dict[str, Any] = {
    "dependent members": {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "additionalProperties": False, "dependentRequired": {"a": ["b"]}},
    "dependent schemas": {"type": "object", "properties": {"a": {"const": 1}, "b": {"type": "integer"}},
        "additionalProperties": False, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
    "dependencies": {"type": "object", "properties": {"a": {}, "b": {}},
        "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
    "unevaluated members": {"type": "object", "properties": {"a": {"type": "null"}}, "unevaluatedProperties": False},
    "unevaluated members of all": {"type": "object", "allOf": [{"properties": {"a": {"type": "null"}}}],
        "patternProperties": {"^b": {"type": "integer"}}, "unevaluatedProperties": {"type": "boolean"}},
    "unevaluated items": {"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": {"type": "integer"}},
    "unevaluated items of all": {"type": "array", "allOf": [{"prefixItems": [{"type": "null"}, {"type": "null"}]}],
        "prefixItems": [{}], "unevaluatedItems": False},
    "all evaluated": {"type": "array", "items": {"type": "null"}, "unevaluatedItems": False},
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}},
    "names of a length": {"type": "object", "propertyNames": {"maxLength": 3}},
    "listed names": {"type": "object", "propertyNames": {"enum": ["a", "bc"]}},
    "no names": {"type": "object", "propertyNames": False},
    "a settled condition": {"if": True, "then": {"type": "integer"}, "else": {"type": "string"}},
    "the other condition": {"if": False, "then": {"type": "integer"}, "else": {"type": "null"}},
}  # fmt: skip
REFUSED: dict[str, Any] = {
    "not": {"type": "string", "not": {"pattern": "^a"}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 3}},
    "if": {"if": {"pattern": "^a"}, "then": {"maxLength": 3}},
    "oneOf": {"oneOf": [{"minimum": 3}, {"multipleOf": 2}]},
    "$recursiveRef": {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"},
    "53 bits": {"enum": ["a", {"id": 175928847299117063}]},
    "9007199254740993": {"type": "integer", "minimum": 9007199254740993},
    "example.com": {"$ref": "http://example.com/schema.json"},
}


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler((ROOT / "quire/models/quire-chat/tokenizer.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SUPPORTED | REWRITTEN)
def test_outputs_of_a_supported_schema_are_valid(sampler: Sampler, name: str) -> None:
    verdict = sampler.judge((SUPPORTED | REWRITTEN)[name], random.Random(name))
    assert verdict.name == "supported", verdict


@pytest.mark.parametrize("keyword", REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused(sampler: Sampler, keyword: str) -> None:
    verdict = sampler.judge(REFUSED[keyword], random.Random(0))
    assert keyword in verdict.refusal


def test_an_output_that_breaks_its_schema_would_be_found(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "sample", lambda matcher, chance: '"no integer"')
    assert sampler.judge({"type": "integer"}, random.Random(0)).name == "INVALID"
    monkeypatch.setattr(sampler, "sample", lambda matcher, chance: None)
    assert sampler.judge({"type": "integer"}, random.Random(0)).name == "UNFINISHED"


@pytest.mark.skipif(not SUITE.exists(), reason="the JSON Schema Test Suite is not here")
def test_a_share_of_the_test_suite(sampler: Sampler) -> None:
    cases = random.Random(14).sample(list(suite(SUITE)), 40)
    verdicts = [(file, description, sampler.judge(schema, random.Random(0))) for file, description, schema in cases]
    assert [one for one in verdicts if one[2].name not in ("supported", "refused")] == []
    assert sum(verdict.name == "supported" for *_, verdict in verdicts) >= 12


KEYWORDS = (
    "type", "enum", "const", "properties", "patternProperties", "additionalProperties", "propertyNames", "required",
    "dependentRequired", "dependentSchemas", "dependencies", "minProperties", "items", "prefixItems", "contains",
    "minContains", "minItems", "uniqueItems", "unevaluatedItems", "unevaluatedProperties", "minimum", "multipleOf",
    "maxLength", "pattern", "format", "allOf", "anyOf", "oneOf", "not", "if", "then", "$ref", "$defs", "$id", "$anchor",
    "$dynamicRef", "$dynamicAnchor", "$schema", "x-guidance", "else", "maxContains", "maxItems", "definitions",
)  # fmt: skip


BESIDE: tuple[dict[str, Any], ...] = ({}, {"unevaluatedProperties": False}, {"allOf": 3})
WRONG_VALUES: tuple[Any, ...] = (
    3, -1, 1e300, 10**400, "x", "(", None, True, [], [3], ["x"], {}, {"a": 3}, {"a": [3]}, [{"a": None}], [[]],
)  # fmt: skip


# These have no effect alone: they name or hold something, or complete a keyword that is not there.
WITHOUT_EFFECT = frozenset({"$anchor", "$defs", "$dynamicAnchor", "$id", "$schema", "definitions"})
WITHOUT_EFFECT |= {"if", "then", "else", "minContains", "maxContains"}
# Values that the specification forbids, and whose meaning is clear.
UNDERSTOOD: dict[str, list[Any]] = {
    "items": [[], [{"a": None}]],
    "unevaluatedItems": [[], [{"a": None}]],
    "prefixItems": [[]],
    "allOf": [[], {}],
    "multipleOf": [-1],
}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_with_a_wrong_value_is_refused_unless_it_has_no_effect(keyword: str) -> None:
    num_refused = 0
    for value, beside in itertools.product(WRONG_VALUES, BESIDE):
        schema = {**beside, keyword: value}
        try:
            compile_grammar(Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "").to_grammar(), BYTES)
        except GrammarError:
            num_refused += 1
        else:
            is_understood = keyword in WITHOUT_EFFECT or value in UNDERSTOOD.get(keyword, [])
            assert is_understood or jsonschema_rs.meta.is_valid(schema), schema
    assert num_refused > 0


AS_IT_IS = SUPPORTED.keys() - {
    "anything", "keywords that say nothing", "one of disjoint ones",
    *(f"format {name}" for name in ("date", "time", "date-time", "hostname")),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(AS_IT_IS))
def test_a_schema_goes_to_the_library_as_it_is(name: str) -> None:
    assert checked_schema(json.dumps(SUPPORTED[name])) == SUPPORTED[name]
