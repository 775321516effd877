"""Chat templates and grammars that would run forever or take all memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.abuse.attack import Attack, Row, posting
from benchmarks.abuse.large import HELLO

TEMPLATES = {
    "a loop of 10^10": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "a string of 10^9": "{{ 'a' * 1000000000 }}",
    "doubling": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "recursion": "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
}
_DOUBLING_RULES = "\n".join(f"r{depth} ::= r{depth + 1} r{depth + 1}" for depth in range(40))
GRAMMARS: dict[str, dict[str, Any]] = {
    "regex, nested counts": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "regex, 2^20 states": {"regex": "(a|b)*a(a|b){20}"},
    "regex, 16,000 optional groups": {"regex": "(.?)" * 16_000},
    "grammar, doubling rules": {"grammar": f'root ::= r0\n{_DOUBLING_RULES}\nr40 ::= "a"'},
    "schema, 100,000 values": {"json": {"enum": [f"value {number}" for number in range(100_000)]}},
    "schema, references in a circle": {
        "json": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}
    },
    "schema, 60 patterns at once": {
        "json": {"type": "string", "allOf": [{"pattern": f"(a|b){{{count}}}"} for count in range(60)]}
    },
    "schema, 10^9 elements": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}},
}


def template(text: str) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, max_tokens=5, chat_template=text)


def grammar(structure: dict[str, Any]) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, max_tokens=5, structured_outputs=structure)


def full_lexers(choices: int = 8, tokens: int = 1990) -> Attack:
    """Texts of limited length, all of one schema: together they have more states than a lexer may."""
    structure = {"json": {"type": "string", "minLength": 2 * tokens, "maxLength": 2 * tokens}}
    return posting(
        "/v1/chat/completions", messages=HELLO, n=choices, max_tokens=tokens, structured_outputs=structure, seed=1
    )


ROWS = (
    Row("8 long texts of one schema", full_lexers, (200,), copies=(1,)),
    *(Row(f"template bomb: {name}", partial(template, text), (400,)) for name, text in TEMPLATES.items()),
    *(Row(f"grammar bomb: {name}", partial(grammar, value), (200, 400)) for name, value in GRAMMARS.items()),
)
