"""What a schema becomes for the library accepts the instances that the schema does: a validator has the say.

The keywords are those that the library has not built (services/router/schema_rewrites).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks.json_schema import Sampler
from services.router.grammar.schema_rewrites.checked import checked_schema
from services.router.grammar.schema_rewrites.formats import _OF_THE_LIBRARY
from services.router.grammar.schema_rewrites.member_keys import exact_keys, inexact_keys
from services.router.grammar.structure import _json_grammar
from services.router.grammar.trial import byte_tokenizer
from shared.grammar import GrammarError, compile_grammar
from tests.unit.router.schema_instances import DEFINITIONS, INSTANCES, accepts, matcher_of, random_schema

ROOT = Path(__file__).parents[3]
SUITE = ROOT.parent / "shared" / "schema" / "json-schema-test-suite-draft2020-12"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def kind(value: str, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": value}, **members}, "required": ["kind", *members]}


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
# By name: a schema, and instances.
SAID_OTHERWISE: dict[str, tuple[Any, list[Any]]] = {
    "a member that decides": ({
        "type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": INTEGER}, "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"required": ["n"]},
        "else": {"properties": {"n": False}}},
        [{"kind": "a"}, {"kind": "a", "n": 1}, {"kind": "b"}, {"kind": "b", "n": 1}, {"kind": "c"}]),
    "the same, as draft 7 and of any string": ({
        "$schema": DRAFT_7, "properties": {"country": {"type": "string"}, "code": {"type": "string"}},
        "if": {"properties": {"country": {"const": "Österreich"}}}, "then": {"properties": {"code": {"maxLength": 1}}}},
        [{"country": "Österreich", "code": "ab"}, {"country": "Österreich", "code": "a"}, {"code": "ab"},
         {"country": "Ö", "code": "ab"}, {"country": "Österreichs", "code": "ab"}, {"country": 3}, "x", 3]),
    "decisions in a row": ({
        "type": "object", "properties": {"kind": {"enum": ["a", "b", "c"]}}, "required": ["kind"], "allOf": [
            {"if": {"properties": {"kind": {"const": name}}}, "then": {"properties": {"v": {"type": one}}}}
            for name, one in (("a", "integer"), ("b", "string"))]},
        [{"kind": "a", "v": 1}, {"kind": "a", "v": "x"}, {"kind": "b", "v": "x"}, {"kind": "b", "v": 1},
         {"kind": "c", "v": None}]),
    "a condition about other types": ({"if": {"minimum": 3}, "then": {"maximum": 5}, "else": {"maximum": 0}},
        [-1, 0, 1, 2.9, 3, 5, 5.1, "x", None, [9]]),
    "not a type": ({"type": ["integer", "string", "null"], "not": {"type": "integer"}}, [1, "x", None]),
    "not a bound": ({"not": {"minimum": 3}}, [2, 3, 4, "x", None]),
    "not a member": ({"not": {"required": ["a"]}}, [{}, {"a": 1}, {"b": 1}, "x", []]),
    "not some strings": ({"type": "string", "not": {"enum": ["foo", "bar", "fo", 'a"\\b']}},
        ["", "f", "fo", "foo", "fooo", "ba", "bar", "barn", 'a"\\b', 'a"\\', "\n", "日本", "日"]),
    "not some quotation marks": ({"type": "string", "not": {"enum": ['"', "a\\", "\0"]}},
        ['"', '""', "a", "a\\", "a\0", "\0", "\0a", "\\", "\1", "a\1"]),
    "a class without backslashes": ({"type": "string", "pattern": r"^[^\\n]$"}, ["a", "n", "\\", "\n", '"']),
    "a class without quotation marks": ({"type": "string", "pattern": '^[^"]*[^\\\\]$'},
        ["a", "\\", "a\\", '"', '"a', '\\"', "ab", "\n", ""]),
    "a class with a bracket": ({"type": "string", "pattern": "^[[a]]$"}, ["a", "[", "a]", "[]", "]"]),
    "a class without brackets": ({"type": "string", "pattern": r"^[^[\\]]+$"}, ["a", "[", "]", "a]"]),
    "a class with ampersands": ({"type": "string", "pattern": "^[a-z&&[b]]$"}, ["b", "b]", "&]", "[]", "c", "B]"]),
    "a class with tildes": ({"type": "string", "pattern": "^[a-c~~b]$"}, ["a", "b", "~", "d"]),
    "a class with hyphens": ({"type": "string", "pattern": "^([+--]x|[--0]y|[-a-]z)$"},
        ["+x", ",x", "-x", ".x", ".y", "-y", "0y", "1y", "-z", "az", "bz"]),
    "names of such classes": ({"patternProperties": {"^[[a]$": INTEGER, "^[b&&c]$": {"minimum": 2}},
        "additionalProperties": False}, [{"[": 2}, {"a": 1}, {"a": "x"}, {"b": 2}, {"&": 3}, {"&": 1}, {"d": 1}]),
    "not some numbers": ({"not": {"enum": [1, 2.5, "x"]}}, [0, 1, 1.5, 2.5, 3, "x", "y", None, {}]),
    "not an array": ({"not": {"const": ["a", 1]}}, [[], ["a"], ["a", 1], ["a", 2], ["a", 1, 1], "a"]),
    "not none": ({"not": {"not": {"const": 1}}}, [1, 2, "x"]),
    "not none beside another": ({"not": {"not": INTEGER, "required": ["a"]}}, [1, 1.5, {}, {"a": 1}, "x"]),
    "not both": ({"not": {"allOf": [{"minimum": 2}, {"maximum": 4}]}}, [1, 2, 3, 4, 5, "x"]),
    "not a condition": ({"type": "integer", "not": {"if": {"minimum": 5}, "then": {"maximum": 7}, "else": False}},
        [4, 5, 7, 8]),
    "options that overlap": ({"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 3}]},
        ["", "a", "ab", "abc", "abcd"]),
    "options that require": ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
    "a union by kind, of references": ({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        "$defs": {"A": kind("a", n=INTEGER), "B": kind("b", t=TEXT)}},
        [{"kind": "a", "n": 1}, {"kind": "b", "t": "x"}, {"kind": "a", "t": "x"}, {"kind": "c"}, {}]),
    "a union of overlapping kinds": ({"oneOf": [kind("a", n=TEXT), kind("a", t=TEXT), kind("b")]},
        [{"kind": "a", "n": "x"}, {"kind": "a", "t": "x"}, {"kind": "a", "n": "x", "t": "x"}, {"kind": "b"}]),
    "a union of a hundred": ({"oneOf": [kind(str(number)) for number in range(100)]},
        [{"kind": "7"}, {"kind": "99"}, {"kind": "100"}, {}]),
    "members of a reference": ({"$ref": "#/$defs/a", "properties": {"b": INTEGER}, "unevaluatedProperties": False,
        "$defs": {"a": {"properties": {"a": INTEGER}}}}, [{}, {"a": 1, "b": 1}, {"b": "x"}, {"c": 1}]),
    "members of options": ({"anyOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": TEXT}}],
        "unevaluatedProperties": False},
        [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}, {"a": "x", "b": "x"}, {"a": 1, "b": 1}, {"c": 1}]),
    "members of a condition": ({"if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"properties": {"b": True}}, "else": {"properties": {"c": True}}, "unevaluatedProperties": False},
        [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"c": 1}, {"a": 2}, {"b": 1}]),
    "items of options": ({"prefixItems": [{"const": 1}], "anyOf": [
        {"prefixItems": [True, {"const": 2}]}, {"prefixItems": [True, True, {"const": 3}]}], "unevaluatedItems": False},
        [[], [1], [1, 2], [1, 2, 3], [1, 4, 3], [1, 4, 4], [1, 4], [1, 2, 3, 4]]),
    "items that another member's schema would evaluate": ({"dependentSchemas": {"b": {"prefixItems": [True]}},
        "unevaluatedItems": INTEGER}, [[], [1], ["x"], {"b": 1}]),
    "items beside those contained": ({"prefixItems": [True], "contains": TEXT, "unevaluatedItems": False},
        [[1], ["x"], [1, "x"], [1, "x", "y"], ["x", 1], []]),
    "what a short array contains": ({"type": "array", "maxItems": 3, "contains": {"const": 1}},
        [[], [1], [2], [2, 1], [2, 2, 1], [2, 2, 2], [1, 1, 1], [2, 2, 2, 1]]),
    "how often": ({"maxItems": 3, "contains": {"const": 1}, "minContains": 1, "maxContains": 2},
        [[], [1], [1, 2, 1], [1, 1, 1], [2], "x"]),
    "nothing of the kind": ({"contains": {"const": 1}, "minContains": 0, "maxContains": 0}, [[], [1], [2], [2, 1]]),
    "different values of a list": ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True,
        "minItems": 1}, [[], ["a"], ["a", "b"], ["a", "a"], ["c", "b", "a"], ["c", "b", "c"], ["d"]]),
    "different flags": ({"prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "items": False,
        "uniqueItems": True}, [[True], [True, False], [True, True], [], "x"]),
    "different kinds": ({"prefixItems": [TEXT, INTEGER], "items": False, "uniqueItems": True}, [["x", 1], [1, 1], []]),
    "names and other members": ({"properties": {"ab": INTEGER, "abcd": INTEGER}, "propertyNames": {"maxLength": 3}},
        [{"ab": 1}, {"ab": "x"}, {"abcd": 1}, {"abc": "x"}, {"abcde": 1}]),
    "names and what they have": ({"propertyNames": {"pattern": "^a"}, "additionalProperties": INTEGER},
        [{"a": 1}, {"a": "x"}, {"b": 1}]),
    "names beside what applies as well": ({"$ref": "#/$defs/a", "propertyNames": {"pattern": "^a"}, "properties": {
        "ab": INTEGER}, "$defs": {"a": {"additionalProperties": INTEGER, "properties": {"b": True}}}},
        [{}, {"a": 1}, {"a": "x"}, {"ab": 1}, {"ab": "x"}, {"b": 1}, {"c": 1}]),
    "names of an enumeration": ({"propertyNames": {"$ref": "#/$defs/Color"}, "additionalProperties": INTEGER,
        "$defs": {"Color": {"title": "Color", "$ref": "#/$defs/Other"}, "Other": {
            "type": "string", "title": "Other", "description": "Two.", "enum": ["red", "blue"]}}},
        [{}, {"red": 1}, {"blue": 1, "red": 2}, {"red": "x"}, {"green": 1}, {"Color": 1}]),
    "names with their type": ({"propertyNames": {"type": ["string", "null"], "title": "N", "const": "a"}},
        [{}, {"a": 1}, {"b": 1}]),
    "names that are not": ({"propertyNames": {"title": "N", "type": "string", "not": {"enum": ["a"], "title": "A"}}},
        [{}, {"a": 1}, {"b": 1}]),
    "names that are UUIDs": ({"propertyNames": {"format": "uuid"}, "additionalProperties": INTEGER},
        [{}, {"123e4567-e89b-12d3-a456-426614174000": 1}, {"123E4567-E89B-12D3-A456-42661417400G": 1}, {"a": 1},
         {"123e4567-e89b-12d3-a456-426614174000": "x"}]),
    "names that are dates": ({"propertyNames": {"$ref": "#/$defs/date"}, "$defs": {"date": {"format": "date"}}},
        [{}, {"2024-02-29": 1}, {"2023-02-29": 1}, {"a": 1}]),
    "patterns with the same schema": ({"patternProperties": {"^a": INTEGER, "b$": INTEGER}},
        [{"ab": 1}, {"ab": "x"}, {"a": "x"}, {"b": "x"}, {"c": "x"}]),
    "patterns that say nothing": ({"patternProperties": {"f": True, "b": False}}, [{"f": 1}, {"b": 1}, {"fb": 1}]),
    "patterns far from the other names": ({"additionalProperties": False, "allOf": [{"required": ["ab"]}],
        "patternProperties": {"^a": INTEGER}},
        [{"ab": 1}, {"ab": "x"}, {"ab": 1, "ac": 2}, {"ab": 1, "b": 2}, {"ac": 1}]),
    "other names beside what applies as well": ({"properties": {"a": INTEGER}, "allOf": [{"required": ["b"]}],
        "additionalProperties": TEXT},
        [{"b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": 1}, {"a": "x", "b": "x"}, {"a": 1}]),
    "a reference into a condition": ({"$ref": "#/if", "if": {"type": "integer"}}, [1, "x"]),
    "a reference into what is rewritten": ({"properties": {"a": {"not": {"const": 1}}, "b": {"$ref":
        "#/properties/a/not"}}}, [{"a": 1}, {"a": 2, "b": 1}, {"b": 2}]),
    "a name with a slash": ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": INTEGER}}, [1, "x"]),
    "resources by their names": ({"$id": "http://example.com/root", "$ref": "item", "$defs": {"i": {"$id": "item",
        "$ref": "#/$defs/deep", "$defs": {"deep": INTEGER}}, "deep": TEXT}}, [1, "x"]),
    "a dynamic reference": ({"$id": "http://example.com/root", "$ref": "list", "$defs": {
        "strings": {"$dynamicAnchor": "item", "type": "string"},
        "list": {"$id": "list", "type": "array", "items": {"$dynamicRef": "#item"},
                 "$defs": {"any": {"$dynamicAnchor": "item"}}}}}, [[], ["x"], [1]]),
    "a dynamic reference by two ways": ({"$id": "http://example.com/root", "properties": {
        "n": {"$ref": "numbers"}, "s": {"$ref": "strings"}}, "$defs": {
        "list": {"$id": "list", "items": {"$dynamicRef": "#item"}, "$defs": {"any": {"$dynamicAnchor": "item"}}},
        **{name: {"$id": name, "$ref": "list", "$defs": {"item": {"$dynamicAnchor": "item", "type": one}}}
           for name, one in (("numbers", "number"), ("strings", "string"))}}},
        [{"n": [1], "s": ["x"]}, {"n": ["x"]}, {"s": [1]}]),
}  # fmt: skip
INEXPRESSIBLE: dict[str, Any] = {
    "numbers that are no integers": {"not": {"type": "integer"}},
    "strings beside a pattern": {"not": {"pattern": "^a"}},
    "an object of other members": {"not": {"const": {"a": 1}}},
    "one of many items": {"contains": {"const": 1}},
    "different strings": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "a circle": {"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}}}},
    "members that no name is known of": {"$ref": "http://example.com/a", "unevaluatedProperties": False},
    "names of a format that has no pattern": {"propertyNames": {"format": "ipv6"}},
    "names of a circle": {"propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "a reference to nowhere": {"$ref": "#/$defs/a"},
    "a reference that is no URI": {"$ref": "http://["},
    "some of very many": {"maxItems": 10**9, "contains": {"const": 1}, "minContains": 10**8},
}


@pytest.mark.parametrize("name", SAID_OTHERWISE)
def test_the_same_instances_are_accepted(name: str) -> None:
    schema, instances = SAID_OTHERWISE[name]
    matcher = matcher_of(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    accepted = [accepts(matcher, instance) for instance in instances]
    assert accepted == [validator.is_valid(instance) for instance in instances]
    assert True in accepted
    assert False in accepted


A = {"type": "object", "properties": {"a": INTEGER}}
NAMED: dict[str, Any] = {
    "a member": A,
    "a member in a list": {"anyOf": [{"type": "null"}, {"type": "array", "items": A}]},
    "other members of a type": A | {"properties": {"a": INTEGER, "ab": TEXT, '"': TEXT}, "additionalProperties": TEXT},
    "a member by a reference": {"$ref": "#/$defs/a", "$defs": {"a": A}},
    "members of all": {"allOf": [A, {"properties": {"b": TEXT}}]},
    "a member that is required": {"required": ["a"], "allOf": [A]},
}
AB = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}
CLOSED = AB | {"additionalProperties": False, "minProperties": 1}
# The library refuses these once they are rewritten, so they stay as they are.
NOT_REWRITTEN: dict[str, Any] = {
    "at least one, and another": CLOSED | {"dependentRequired": {"a": ["b"]}},
    "at least one of some names": AB | {"propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
    "at least one, but not all": CLOSED | {"not": {"required": ["a", "b"]}},
    "at least one beside a reference": CLOSED | {"$ref": "#/$defs/a", "$defs": {"a": A}},
    "a pattern by a reference": {"type": "object", "$ref": "#/$defs/p", "$defs": {"p": {"patternProperties": {"^x":
        INTEGER}}}, "anyOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, {"required": ["b"]}]},
    "a long name": {"properties": {"a": INTEGER, "b" * 90: INTEGER}, "additionalProperties": TEXT},
    "many names": {"properties": {"a": INTEGER} | {f"{one}_is_quite_a_long_name": INTEGER for one in range(300)},
        "additionalProperties": TEXT},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_the_key_of_a_named_member_is_written_in_one_way(name: str) -> None:
    """The library takes a key with escapes for another member's."""
    matcher = matcher_of(NAMED[name])
    before, after = ("[", "]") if "list" in name else ("", "")

    def is_accepted(text: str) -> bool:
        tokens = list(f"{before}{text}{after}".encode())
        fresh = matcher.deep_copy()
        return bool(fresh.try_consume_tokens(tokens) == len(tokens) and fresh.is_accepting())

    assert is_accepted('{"a": 1}')
    assert is_accepted('{"a": 1, "": "", "\\n\\u0001\\"": "x"}')
    assert not is_accepted('{"a": "x"}')
    assert not is_accepted('{"\\u0061": "x"}')
    assert not is_accepted('{"a": 1, "\\u0061": "x"}')


@pytest.mark.parametrize("name", NOT_REWRITTEN)
def test_a_schema_that_the_library_could_not_rewrite_is_still_enforced(name: str) -> None:
    schema = NOT_REWRITTEN[name]
    checked = checked_schema(json.dumps(schema))
    with pytest.raises(GrammarError):
        compile_grammar(_json_grammar(exact_keys(checked)), byte_tokenizer())
    matcher, validator = matcher_of(schema), jsonschema.Draft202012Validator(schema)
    instances = [{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 1}]
    accepted = [accepts(matcher, one) for one in instances]
    assert accepted == [validator.is_valid(one) for one in instances]
    assert True in accepted
    assert False in accepted


@pytest.mark.parametrize("character", ["\n", "\b", "\x1f", "\x7f"])
def test_a_name_with_a_control_character_is_written_in_one_way(character: str) -> None:
    matcher = matcher_of({"type": "object", "properties": {character: INTEGER}})
    for key in {json.dumps(character), f'"\\u{ord(character):04x}"', f'"\\u{ord(character):04X}"'}:
        tokens = list(f'{{{key}: "x"}}'.encode())
        assert matcher.deep_copy().try_consume_tokens(tokens) < len(tokens)
    assert accepts(matcher, {character: 1})


def test_an_object_with_patterns_of_its_own_stays_as_it_is() -> None:
    schema = A | {"patternProperties": {"^b": TEXT}}
    assert exact_keys(schema) == schema


@pytest.mark.parametrize("additional", [True, {}, TEXT, False])
@pytest.mark.parametrize("named", [{}, {"required": ["a"]}, A, A | {"required": ["a", "b"]}])
def test_the_schema_of_other_members_is_found_again(named: dict[str, Any], additional: Any) -> None:
    schema = named | {"additionalProperties": additional}
    without_effect = named if additional is True else schema
    assert inexact_keys(schema) == schema
    assert inexact_keys(exact_keys(schema)) == (without_effect if named else schema)
    assert inexact_keys(exact_keys(named)) == named
    with_patterns = schema | {"patternProperties": {"^b": TEXT}}
    assert inexact_keys(with_patterns) == with_patterns


def test_empty_classes_are_those_of_ecma_262() -> None:
    """Which no validator in Python reads."""
    matcher = matcher_of({"type": "string", "pattern": r"^(a[^]|b[]|c\[]])$"})
    accepted = [text for text in ("a", "ab", "a\n", 'a"', "b", "b]", "b[]", "c[]]") if accepts(matcher, text)]
    assert accepted == ["ab", "a\n", 'a"', "c[]]"]


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_cannot_be_said_is_refused(name: str) -> None:
    with pytest.raises(GrammarError):
        matcher_of(INEXPRESSIBLE[name])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_random_schemas_accept_what_a_validator_does(depth: int) -> None:
    num_supported = 0
    for seed in range(150):
        schema = random_schema(random.Random(f"{depth} {seed}"), depth) | {"$defs": DEFINITIONS}
        try:
            matcher = matcher_of(schema)
        except GrammarError:
            continue
        num_supported += 1
        validator = jsonschema.Draft202012Validator(schema)
        wrong = [one for one in INSTANCES if accepts(matcher, one) != validator.is_valid(one)]
        assert wrong == [], (seed, schema)
    assert num_supported > 60


def nested_options(depth: int) -> Any:
    return (
        {"const": depth} if depth == 0 else {"oneOf": [nested_options(depth - 1), {"not": nested_options(depth - 1)}]}
    )


TOO_MUCH: dict[str, Any] = {
    "options that overlap": {"oneOf": [{"required": [f"p{number}"]} for number in range(200)]},
    "options in options": nested_options(9),
    "a deep value": {"not": {"const": json.loads("[" * 900 + "]" * 900)}},
    "ways through references": {"$id": "http://example.com/", "$ref": "d0", "$defs": {
        f"d{one}": {"$id": f"d{one}", "$dynamicAnchor": f"a{one}", "anyOf": [
            {"$ref": f"d{other}"} for other in range(9)]}
        for one in range(9)}},
    "multiples": {"allOf": [{"multipleOf": 65537}, {"multipleOf": 65536}]},
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_no_schema_becomes_too_large(name: str) -> None:
    with pytest.raises(GrammarError):
        checked_schema(json.dumps(TOO_MUCH[name]))


FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "2000-02-29", "2023-12-31"], ["2023-02-29", "1900-02-29", "2023-04-31", "2023-1-1"]),
    "time": (["23:59:60Z", "12:00:00.5+02:00"], ["22:59:60Z", "24:00:00Z", "12:00:00"]),
    "date-time": (["2024-02-29T23:59:59Z"], ["2023-02-29T00:00:00Z", "2024-02-29 00:00:00Z"]),
    "hostname": (["example.com", "a", "x-1.y"], ["", "-a", "a-", "a..b", "xn--X", "a_b"]),
    "idn-hostname": (["münchen.de", "例え.jp", "한국", "a-b.com"], ["-a", "Ä", "a..b", "xn--X", "a b"]),
    "idn-email": (["jürgen@müller.de", "é-ñ@b.c", "a.b@c"], ["a", "a@", "@b", "a..b@c", "a b@c", "\x7f@b", "\xa0@b"]),
    "iri": (["http://例え.jp/ä?ö#ü", "urn:a:b", "http://[::1]:80/"], ["//a", "a", "http://a b", "http://[::1"]),
    "iri-reference": (["/ä", "ä", "../b", "", "http://a"], ["\\\\a", "1:b", "a b", "#ä#"]),
    "json-pointer": (["", "/", "/a~0b/~1/ä"], ["a", "/~", "/~2"]),
    "regex": (["^[a-z]+(ab|c)*$", "\\d{2,3}", "(a(b)?)+?", "[^\\]]", "a||b", "\\bx"],
        ["(", "[z-a]", "a**", "a{3,2}", "\\", "+", "[a", "\\a"]),
    "relative-json-pointer": (["0#", "1/a", "10"], ["/a", "01", "-1", "0##"]),
    "uri-reference": (["/a?b#c", "../a", "http://a:1/", "//h", "", "%20", "./a:b"], ["\\a", "1a:b", "a b", "ä", "%2"]),
    "uri-template": (["/a{?b,c*}", "{+a:3}", "x", "{a.b}"], ["{", "{a", "}", "{a:0}", "{=a}", "a b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str) -> None:
    matcher = matcher_of({"format": name})
    valid, invalid = FORMATS[name]
    assert [text for text in valid if not accepts(matcher, text)] == []
    assert [text for text in invalid if accepts(matcher, text)] == []
    assert accepts(matcher, 3)  # a format is about strings


@pytest.mark.parametrize(("name", "date"), [("time", ""), ("date-time", "2024-02-29T")])
def test_a_second_has_nine_decimals_at_most(name: str, date: str) -> None:
    matcher = matcher_of({"format": name})
    assert [n for n in range(12) if accepts(matcher, f"{date}12:00:00.{'7' * n}Z")] == list(range(1, 10))


@pytest.mark.parametrize("name", FORMATS)
def test_random_strings_of_a_format_are_valid(name: str) -> None:
    """By a validator that knows them all, and by one that has regular expressions as Python does."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    sampler = Sampler((ROOT / "quire/models/quire-chat/tokenizer.json").read_text(encoding="utf-8"))
    schema = {"type": "string", "format": name}
    strict = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    lenient = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    chance, matcher = random.Random(name), matcher_of(schema, sampler.tokenizer)
    sampled = [sampler.sample(matcher.deep_copy(), chance) for _ in range(40)]
    outputs = [json.loads(output) for output in sampled if output is not None]
    assert [text for text in outputs if not strict.is_valid(text) or not lenient.is_valid(text)] == []
    assert len(set(outputs)) > 3


@pytest.mark.parametrize("name", ["path", "password", "int64", "of its own", "unknown"])
def test_a_format_that_nobody_knows_asserts_nothing(name: str) -> None:
    assert accepts(matcher_of({"type": "string", "format": name}), "what\never")


@pytest.mark.parametrize("name", sorted(_OF_THE_LIBRARY))
def test_formats_that_are_left_to_the_library_are_known_to_it(name: str) -> None:
    assert not accepts(matcher_of({"type": "string", "format": name}), "what\never")


def test_a_format_stands_beside_a_pattern_and_a_length() -> None:
    matcher = matcher_of({"format": "uri-reference", "pattern": "^/", "minLength": 3})
    assert [accepts(matcher, text) for text in ("/ab", "/a", "abc", "/ä ")] == [True, False, False, False]


# The library has `\S` match a byte order mark, and does not see names of a pattern that are written as \\u escapes.
KNOWN = {"ECMA 262 \\S matches everything but whitespace", "Proper UTF-16 surrogate pair handling: patternProperties"}


@pytest.mark.skipif(not SUITE.exists(), reason="the JSON Schema Test Suite is not here")
@pytest.mark.parametrize("path", sorted(SUITE.rglob("*.json")), ids=lambda path: path.stem)
def test_no_invalid_instance_of_the_test_suite_is_accepted(path: Path) -> None:
    for case in json.loads(path.read_text(encoding="utf-8")):
        try:
            matcher = matcher_of(case["schema"])
        except GrammarError:
            continue
        for test in case["tests"]:
            assert test["valid"] or case["description"] in KNOWN or not accepts(matcher, test["data"]), test
