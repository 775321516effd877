"""What an output may be asked to look like, in every form, and what is refused before anything is generated."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from llguidance import LLMatcher

from services.router.errors import ApiError
from services.router.grammar_checks import GrammarChecks, byte_tokenizer
from services.router.openai.chat_completions import ChatCompletionRequest
from services.router.openai.validation import parse_body
from services.router.structure import Structure, StructureKind
from shared.grammar import compile_grammar


@pytest.fixture(scope="module")
def checks() -> GrammarChecks:
    return GrammarChecks()


def structure_of(**fields: Any) -> Structure | None:
    body = parse_body(
        json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode(), ChatCompletionRequest
    )
    return body.structure()


def accepts(grammar: str, text: str) -> bool:
    """Whether the text is a whole output."""
    matcher: LLMatcher = compile_grammar(grammar, byte_tokenizer())
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, ['{"x": [1, null]}', "{}"], ["[1]", "1", ""]),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            ['{"a": 1}', '{"a":-2}', '{\n  "a": 3\n}'],
            ['{"a": "1"}', "{}", '{"a": 1, "b": 2}', '{"a":       1}'],
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, ['{"x": 1}'], ["[]"]),
        ({"guided_json": SCHEMA}, ['{"a": 1}'], ["{}"]),
        ({"guided_json": json.dumps(SCHEMA)}, ['{"a": 1}'], ["{}"]),
        ({"guided_regex": "[ab]+|c"}, ["abba", "c"], ["ac", "", "cc"]),
        ({"guided_regex": "^a.c$"}, ["abc"], ["abcd", "ac"]),
        (
            {"guided_choice": ["yes", "no (\\d) ☕", "a\nb"]},
            ["yes", "no (\\d) ☕", "a\nb"],
            ["no", "yesyes", "no (1) ☕"],
        ),
        ({"guided_grammar": 'root ::= "a" root | "b"'}, ["b", "aab"], ["a", "ba"]),
        ({"guided_grammar": 'start: "a" start | "b"'}, ["b", "aab"], ["a", "ba"]),
        ({"structured_outputs": {"json": SCHEMA}}, ['{"a": 1}'], ["{}"]),
        ({"structured_outputs": {"regex": "a{2}", "disable_fallback": True}}, ["aa"], ["a", "aaa"]),
        ({"structured_outputs": {"choice": ["x", "y"]}}, ["x"], ["xy"]),
        ({"structured_outputs": {"grammar": 'start: "q"'}}, ["q"], ["start"]),
        ({"structured_outputs": {"json_object": True}}, ["{}"], ["[]"]),
    ],
)
async def test_every_form_says_what_an_output_may_be(
    checks: GrammarChecks, fields: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    structure = structure_of(**fields)
    assert structure is not None
    grammar = await checks.check(structure)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}, "guided_decoding_backend": "xgrammar"},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_an_output_without_a_structure_is_free(fields: dict[str, Any]) -> None:
    assert structure_of(**fields) is None


def test_an_output_has_one_structure() -> None:
    with pytest.raises(ApiError, match=r"'structured_outputs\.regex' and 'guided_choice' exclude each other") as caught:
        structure_of(guided_choice=["a"], structured_outputs={"regex": "a"})
    assert caught.value.param == "structured_outputs.regex"


def test_a_format_without_its_schema_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        structure_of(response_format={"type": "json_schema"})
    assert caught.value.param == "response_format.json_schema"


def chain(num_references: int) -> str:
    links = ",".join(f'"{i}":{{"$ref":"#/$defs/{i + 1}"}}' for i in range(num_references))
    return f'{{"$ref":"#/$defs/0","$defs":{{{links},"{num_references}":{{"type":"string"}}}}}}'


NOT_TAKEN = [
    (StructureKind.JSON_SCHEMA, "{", "not JSON"),
    (StructureKind.JSON_SCHEMA, "NaN", "not JSON"),
    (StructureKind.JSON_SCHEMA, "[]", "neither an object nor a boolean"),
    (StructureKind.JSON_SCHEMA, "false", "nothing matches it"),
    (StructureKind.JSON_SCHEMA, '{"x-guidance": {"lenient": true}, "not": {}}', "x-guidance"),
    (StructureKind.JSON_SCHEMA, '{"type": "integer", "not": {"const": 1}}', "not"),
    (StructureKind.JSON_SCHEMA, '{"type": "string", "format": "of its own"}', "format"),
    (StructureKind.JSON_SCHEMA, '{"$ref": "#"}', ""),
    (StructureKind.JSON_SCHEMA, '{"$ref": "http://127.0.0.1:1/schema.json"}', ""),
    (StructureKind.REGEX, "(", "unclosed group"),
    (StructureKind.REGEX, "a(?=b)", "look-around"),
    (StructureKind.REGEX, r"(a)\1", "backreferences"),
    (StructureKind.REGEX, r"[^\x00-\x{10FFFF}]", ""),
    (StructureKind.GRAMMAR, "start: missing", "missing"),
    (StructureKind.GRAMMAR, "root ::= missing", "missing"),
    (StructureKind.GRAMMAR, "?", ""),
]
HOSTILE = [
    (StructureKind.JSON_SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000, "nested"),
    (StructureKind.JSON_SCHEMA, "[" * 30_000, "nested"),
    (StructureKind.JSON_SCHEMA, json.dumps({"enum": [str(i) for i in range(50_000)]}), "65536 are allowed"),
    (
        StructureKind.JSON_SCHEMA,
        json.dumps({"type": "object", "properties": {str(i): {} for i in range(3000)}}),
        "items",
    ),
    (
        StructureKind.JSON_SCHEMA,
        json.dumps({"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]}),
        "too large",
    ),
    (StructureKind.REGEX, "(((a{1000}){1000}){1000})", ""),
    (StructureKind.REGEX, "(" * 10_000 + "a" + ")" * 10_000, "nest"),
    (StructureKind.GRAMMAR, "start: " + "(" * 10_000 + '"a"' + ")" * 10_000, "nested"),
    (
        StructureKind.GRAMMAR,
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(2600)) + 'r2600 ::= "a"',
        "too much",
    ),
    (StructureKind.REGEX, "(.?)" * 9000, "too much"),
    (
        StructureKind.JSON_SCHEMA,
        json.dumps({"type": "string", "allOf": [{"pattern": f"(a|b){{{i}}}"} for i in range(60)]}),
        "too much",
    ),
    (StructureKind.GRAMMAR, "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000, ""),
]


@pytest.mark.parametrize(("kind", "source", "words"), NOT_TAKEN + HOSTILE)
async def test_what_cannot_be_used_is_refused_and_its_field_named(
    checks: GrammarChecks, kind: StructureKind, source: str, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await checks.check(Structure(kind, source, "guided_something"))
    assert caught.value.param == "guided_something"
    assert words in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (StructureKind.JSON_SCHEMA, chain(1800)),
        (StructureKind.GRAMMAR, "\n".join(["start: r0", *(f"r{i}:r{i + 1}" for i in range(4800)), 'r4800: "a"'])),
        (StructureKind.REGEX, "[a-z]{1,60000}"),
        (StructureKind.REGEX, "(a|b)*a(a|b){400}"),
        (StructureKind.REGEX, "|".join(f"x{i}y" for i in range(8000))),
        (StructureKind.JSON_SCHEMA, json.dumps({"type": "array", "minItems": 60_000, "items": {"type": "string"}})),
    ],
)
async def test_what_is_large_and_can_be_used_is(checks: GrammarChecks, kind: StructureKind, source: str) -> None:
    """Also a chain of references that would overflow a thread's usual stack, and end the process."""
    assert await checks.check(Structure(kind, source, "x"))


async def test_a_structure_is_checked_once(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    structure = Structure(StructureKind.REGEX, "checked once", "x")
    grammar = await checks.check(structure)
    monkeypatch.setattr("services.router.grammar_checks._try_apart", None)
    assert await checks.check(structure) == grammar


async def test_too_many_that_wait_to_be_checked_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = GrammarChecks()
    monkeypatch.setattr("services.router.grammar_checks._MAX_PENDING", 0)
    with pytest.raises(ApiError, match="waiting to be checked"):
        await checks.check(Structure(StructureKind.REGEX, "a", "x"))


async def test_the_event_loop_goes_on_meanwhile(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def recorded(structure: Structure) -> str:
        threads.append(threading.current_thread().name)
        return ""

    monkeypatch.setattr("services.router.grammar_checks._try_apart", recorded)
    await checks.check(Structure(StructureKind.REGEX, "beside the loop", "x"))
    assert [name.startswith("grammar") for name in threads] == [True]
