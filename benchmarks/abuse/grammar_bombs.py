"""Grammars that would take much time or memory to compile, or that match nothing."""

from __future__ import annotations

import string
from typing import Any

Json = dict[str, Any]


def _rules(rule: str, last: str, depth: int, name: str = "r") -> str:
    """Rules that each refer to the next one. In `rule`, THIS and NEXT stand for their names; `last` ends the chain."""
    lines = [rule.replace("THIS", f"{name}{i}").replace("NEXT", f"{name}{i + 1}") for i in range(depth)]
    return "\n".join((*lines, last.replace("THIS", f"{name}{depth}")))


def _references(depth: int, **schema: Any) -> Json:
    """Schemas that each refer to the next one. In `schema`, "NEXT" stands for the reference."""

    def filled(value: Any, level: int) -> Any:
        if value == "NEXT":
            return {"$ref": f"#/$defs/d{level + 1}"}
        if isinstance(value, dict):
            return {key: filled(inner, level) for key, inner in value.items()}
        return [filled(inner, level) for inner in value] if isinstance(value, list) else value

    links = {f"d{level}": filled(schema, level) for level in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{depth}": {"type": "integer"}}}


def _nested(depth: int, key: str, innermost: Json) -> Json:
    schema = innermost
    for _ in range(depth):
        schema = {key: schema}
    return schema


def _numbered(count: int, text: str) -> list[str]:
    return [text.replace("N", str(number)) for number in range(count)]


REGEXES = {
    "nested counts": "((a{1,1000}){1,1000}){1,1000}",
    "2^20 states": "(a|b)*a(a|b){20}",
    "2^200 states": "(a|b)*a(a|b){200}b",
    "16,000 optional groups": "(.?)" * 16_000,
    "stars in stars": "((((a*)*)*)*)*b",
    "three ways for every letter": "(a|aa|aaa)+b(a|aa|aaa)+c",
    "three times anything": ".*.*.*=.*",
    "a count of 10^9": "a{1000000000}",
    "counts of 65,535 in one another": "(a{65535}){65535}",
    "counts of classes": r"([\w\s]{1,200}[^\w]{1,200}){1,200}",
    "60,000 characters of any kind": r"[\s\S]{0,60000}x",
    "30,000 brackets in one another": "(" * 30_000 + "a" + ")" * 30_000,
    "10,000 words": "|".join(_numbered(10_000, "aN")),
    "30,000 empty words": "a" + "|" * 30_000,
    "letters of all alphabets": r"(\p{L}\p{N}\p{S}){1,3000}",
    "a long word without its case, 500 times": f"(?i)({string.ascii_letters * 20}){{1,500}}",
    "a look ahead": "(?=(a+)+$)a*",
    "a back reference": r"((a|b)*)\1\1",
    "300 overlapping words": f"({'|'.join(_numbered(300, '.*xN.{N}'))})*",
}
GRAMMARS = {
    "doubling rules": "root ::= r0\n" + _rules("THIS ::= NEXT NEXT", 'THIS ::= "a"', 40),
    "doubling terminals": "start: R0\n" + _rules("THIS: NEXT NEXT", 'THIS: "a"', 40, "R"),
    "rules in a circle": "root ::= a\na ::= b\nb ::= a",
    "recursion at the left": 'root ::= root "a" | root "b" | "c"',
    "all readings of a text": 'root ::= root root | root root root | "a" | ""',
    "nothing, repeated": 'root ::= (""*)* ("" | root)* "a"',
    "counts in counts": 'root ::= ((("a"{0,1000}){0,1000}){0,1000}){0,1000}',
    "a count of 10^9": 'root ::= "a"{1000000000}',
    "50,000 words": "root ::= " + " | ".join(_numbered(50_000, '"N"')),
    "20,000 rules": "root ::= r0\n" + _rules('THIS ::= "a" NEXT', 'THIS ::= "a"', 20_000),
    "20,000 brackets in one another": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "a word of 500,000 letters": f'root ::= "{"a" * 500_000}"',
    "2,000 ignored patterns": 'start: "a"\n' + "\n".join(_numbered(2_000, "%ignore /(a|b)*aN/")),
    "a hostile pattern in a terminal": "start: A A\nA: /((a{1,1000}){1,1000}){1,1000}/",
}
SCHEMAS: dict[str, Json] = {
    "100,000 values": {"enum": _numbered(100_000, "value N")},
    "references in a circle": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
    },
    "60 patterns at once": {"type": "string", "allOf": [{"pattern": f"(a|b){{{count}}}"} for count in range(60)]},
    "10^9 elements": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "a text of 10^9 characters": {"type": "string", "minLength": 10**9},
    "doubling choices": _references(30, anyOf=["NEXT", {"type": "array", "items": "NEXT"}]),
    "doubling demands": _references(30, allOf=["NEXT", "NEXT"]),
    "doubling properties": _references(30, properties={"a": "NEXT", "b": "NEXT"}, required=["a", "b"]),
    "2^30 combinations": {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(30)]},
    "900 objects in one another": _nested(900, "additionalProperties", {"type": "integer"}),
    "300 arrays in one another": _nested(300, "items", {"type": "integer"}),
    "3,000 properties": {"type": "object", "properties": {key: {"type": "string"} for key in _numbered(3000, "pN")}},
    "1,500 required properties": {
        "type": "object",
        "properties": {key: {"type": "integer"} for key in _numbered(1500, "pN")},
        "required": _numbered(1_500, "pN"),
    },
    "500 patterns of names": {"patternProperties": {key: {} for key in _numbered(500, "^(a|b)*a(a|b){9}N$")}},
    "a hostile pattern": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+((a{1,500}){1,500}){1,500}$"},
    "a hostile pattern of 5,000 characters": {"type": "string", "pattern": "^(a|b)*a(a|b){18}$", "minLength": 5000},
    "a number between two huge ones": {"type": "number", "minimum": 1e300, "maximum": 1.0000001e300},
    "a multiple of a tiny number": {"type": "number", "multipleOf": 1e-300, "minimum": 0.1, "maximum": 0.2},
    "20,000 elements, each of its own kind": {
        "type": "array",
        "prefixItems": [{"const": number} for number in range(20_000)],
        "minItems": 20_000,
    },
    "1,000 different elements": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 1000},
    "a schema of another server": {"$ref": "http://127.0.0.1:1/schema.json"},
}
