"""What an output may be asked to look like, in every form, and what is refused before anything is generated."""

from __future__ import annotations

import asyncio
import json
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.constraints import grammar_checker as grammar_checks
from services.router.constraints.grammar_checker import GrammarChecks, _CheckProcess
from services.router.errors import ApiError, ErrorKind
from services.router.grammar.check_process import MEMORY_BYTES
from services.router.grammar.structure import Structure, StructureKind
from services.router.grammar.trial import byte_tokenizer
from services.router.http.reader import parse_body
from shared.grammar import compile_grammar
from shared.python_child import child_environment, python_command
from tests.fakes.waiting import HANG_S


@pytest.fixture(scope="module")
def checks() -> Iterator[GrammarChecks]:
    checks = GrammarChecks()
    yield checks
    checks.close()


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
        # llama.cpp's, Together's and Fireworks'.
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ['{"a": 1}'], ["{}"]),
        ({"response_format": {"type": "json_object", "schema": {}}}, ["{}"], ["[]"]),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, ['{"a": 1}'], ["{}"]),
        ({"json_schema": SCHEMA, "grammar": ""}, ['{"a": 1}'], ["{}"]),
        ({"grammar": 'root ::= "a" root | "b"'}, ["aab"], ["ba"]),
        # SGLang's.
        ({"json_schema": json.dumps(SCHEMA)}, ['{"a": 1}'], ["{}"]),
        ({"regex": "a{2}", "ebnf": "", "json_schema": ""}, ["aa"], ["aaa"]),
        ({"ebnf": 'root ::= ("a" | "b") "c"'}, ["bc"], ["c"]),
        # TGI's.
        ({"response_format": {"type": "json", "value": SCHEMA}}, ['{"a": 1}'], ["{}"]),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, ['{"a": 1}'], ["{}"]),
        ({"response_format": {"type": "regex", "value": "a{2}"}}, ["aa"], ["aaa"]),
        ({"response_format": {"type": "json_schema", "value": {"name": "n", "schema": SCHEMA}}}, ['{"a": 1}'], ["{}"]),
        ({"grammar": {"type": "json", "value": SCHEMA}}, ['{"a": 1}'], ["{}"]),
        ({"grammar": {"type": "regex", "value": "a{2}"}}, ["aa"], ["aaa"]),
        # What asks for an object and has a schema is held to the schema.
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, ['{"a": 1}'], ["{}"]),
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
        {"grammar": "", "regex": "", "ebnf": "", "json_schema": ""},
    ],
)
def test_an_output_without_a_structure_is_free(fields: dict[str, Any]) -> None:
    assert structure_of(**fields) is None


def test_an_output_has_one_structure() -> None:
    with pytest.raises(ApiError, match=r"'structured_outputs\.regex' and 'guided_choice' exclude each other") as caught:
        structure_of(guided_choice=["a"], structured_outputs={"regex": "a"})
    assert caught.value.param == "structured_outputs.regex"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json"}}, "response_format.value"),
        ({"response_format": {"type": "regex"}}, "response_format.value"),
        ({"response_format": {"type": "regex", "schema": {}}}, "response_format.value"),
        ({"response_format": {"type": "regex", "value": {}}}, "response_format.value"),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}, "value": {}}}, "response_format.value"),
        ({"grammar": {"type": "regex"}}, "grammar.value"),
        ({"grammar": {"type": "regex", "value": 1}}, "grammar.value"),
        ({"grammar": {"type": "xml", "value": 1}}, "grammar.type"),
        ({"grammar": 1}, "grammar"),
        ({"regex": "a", "ebnf": "b"}, "ebnf"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_a_format_that_says_too_little_or_too_much_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        structure_of(**fields)
    assert caught.value.param == param


def chain(num_references: int) -> str:
    links = ",".join(f'"{i}":{{"$ref":"#/$defs/{i + 1}"}}' for i in range(num_references))
    return f'{{"$ref":"#/$defs/0","$defs":{{{links},"{num_references}":{{"type":"string"}}}}}}'


NOT_TAKEN = [
    (StructureKind.JSON_SCHEMA, "{", "not JSON"),
    (StructureKind.JSON_SCHEMA, "NaN", "not JSON"),
    (StructureKind.JSON_SCHEMA, "[]", "neither an object nor a boolean"),
    (StructureKind.JSON_SCHEMA, "false", "nothing matches it"),
    (StructureKind.JSON_SCHEMA, '{"x-guidance": {"lenient": true}, "not": {}}', "x-guidance"),
    (StructureKind.JSON_SCHEMA, '{"type": "string", "not": {"pattern": "a"}}', "not"),
    (StructureKind.JSON_SCHEMA, '{"$ref": "#"}', "nothing finite matches it"),
    (StructureKind.GRAMMAR, "start: start", "nothing finite matches it"),
    (StructureKind.JSON_SCHEMA, '{"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}', "use 'anyOf'"),
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
    (StructureKind.REGEX, "(.?)" * 16_000, "too much"),
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


# Linux counts the peak of whoever starts a process as the process's own, so a small one starts it.
MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, status)
"""


def peak_of_a_check(kind: StructureKind, source: str) -> tuple[int, int]:
    """The most memory in bytes of a process that checks one structure, and its exit status."""
    checking = python_command("services.router.grammar.check_process")
    measured = subprocess.run(
        [sys.executable, "-ISc", MEASURE, *checking],
        input=json.dumps({"kind": kind.value, "source": source}) + "\n",
        env=child_environment() | grammar_checks._ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    peak, status = map(int, measured.stdout.split())
    return peak, status


def test_a_check_takes_no_more_memory_than_it_may() -> None:
    least, status = peak_of_a_check(StructureKind.REGEX, "a")
    assert status == 0
    for kind, source, words in HOSTILE:
        if words == "too much":
            peak, status = peak_of_a_check(kind, source)
            assert status < 0
            assert peak < least + MEMORY_BYTES


@pytest.mark.parametrize(
    ("exit_code", "asked"), [(-signal.SIGABRT, [1, 2, 1]), (1, [1, 2, 1]), (-signal.SIGPROF, [1, 2])]
)
def test_a_check_without_memory_is_repeated_once_in_a_new_process(
    monkeypatch: pytest.MonkeyPatch, exit_code: int, asked: list[int]
) -> None:
    """Earlier checks may have left too little. What takes too much time would take as long again."""
    process = _CheckProcess()
    numbers: list[int] = []

    def ask(question: object) -> bytes:
        process._num_checks += 1
        numbers.append(process._num_checks)
        return b"" if process._num_checks > 1 else b'{"grammar": "g"}\n'

    def close() -> int:
        process._num_checks = 0
        return exit_code

    monkeypatch.setattr(process, "_ask", ask)
    monkeypatch.setattr(process, "close", close)
    structure = Structure(StructureKind.REGEX, "a", "x")
    assert process.check(structure) == "g"
    assert (process.check(structure) == "g") is (len(asked) == 3)
    assert numbers == asked


class SlowProcess:
    """Answers what it is asked when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()

    def check(self, structure: Structure) -> str:
        self.asked.append(structure.source)
        self.may_answer.wait(HANG_S)
        return f"grammar of {structure.source}"

    def close(self) -> None:
        self.may_answer.set()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GrammarChecks, SlowProcess]]:
    process = SlowProcess()
    monkeypatch.setattr(grammar_checks, "_CheckProcess", lambda: process)
    checks = GrammarChecks()
    yield checks, process
    checks.close()


async def test_a_structure_is_checked_once_however_many_bring_it_and_whatever_they_call_it(
    slow: tuple[GrammarChecks, SlowProcess],
) -> None:
    checks, process = slow
    structures = [Structure(StructureKind.REGEX, "same", f"field_{i % 3}") for i in range(2000)]
    waiting = [asyncio.create_task(checks.check(structure)) for structure in structures]
    await asyncio.sleep(0)
    # The loop goes on meanwhile, and one who leaves takes nothing from the others.
    waiting[0].cancel()
    process.may_answer.set()
    results = await asyncio.gather(*waiting[1:])
    assert set(results) == {"grammar of same"}
    assert await checks.check(structures[0]) == "grammar of same"
    assert process.asked == ["same"]


async def test_too_many_that_wait_to_be_checked_are_turned_away(
    slow: tuple[GrammarChecks, SlowProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, process = slow
    monkeypatch.setattr(grammar_checks, "_MAX_PENDING", 2)
    waiting = [asyncio.create_task(checks.check(Structure(StructureKind.REGEX, name, "x"))) for name in ("a", "b", "a")]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="waiting to be checked"):
        await checks.check(Structure(StructureKind.REGEX, "c", "x"))
    process.may_answer.set()
    assert await asyncio.gather(*waiting) == ["grammar of a", "grammar of b", "grammar of a"]
    assert await checks.check(Structure(StructureKind.REGEX, "c", "x")) == "grammar of c"


async def test_one_that_waits_too_long_is_turned_away(
    slow: tuple[GrammarChecks, SlowProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, _ = slow
    monkeypatch.setattr(grammar_checks, "_MAX_WAIT_SECONDS", 0.05)
    with pytest.raises(ApiError, match="too busy"):
        await checks.check(Structure(StructureKind.REGEX, "a", "x"))


async def test_a_check_that_nobody_waits_for_any_more_is_not_made(slow: tuple[GrammarChecks, SlowProcess]) -> None:
    checks, process = slow
    first, *others = (
        asyncio.create_task(checks.check(Structure(StructureKind.REGEX, name, "x")))
        for name in ("first", "a", "b", "b")
    )
    await asyncio.sleep(0)
    for left in others[:2]:
        left.cancel()
    await asyncio.wait(others[:2])
    process.may_answer.set()
    assert (await first, await others[2]) == ("grammar of first", "grammar of b")
    assert process.asked == ["first", "b"]
    assert await checks.check(Structure(StructureKind.REGEX, "a", "x")) == "grammar of a"


async def test_a_check_that_is_killed_is_made_again(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel or an operator: what it would have found is not known."""
    await checks.check(Structure(StructureKind.REGEX, "so that there is a process", "x"))
    ask, deaths = _CheckProcess._ask, 1

    def ask_or_die(self: _CheckProcess, question: object) -> bytes:
        nonlocal deaths
        if deaths:
            deaths -= 1
            self._child = self._child or self._start()
            self._child.kill()
            self._child.wait()
        return ask(self, question)

    monkeypatch.setattr(_CheckProcess, "_ask", ask_or_die)
    assert await checks.check(Structure(StructureKind.REGEX, "killed once", "x"))
    # Twice in a row is what becomes of who takes all memory.
    deaths = 2
    with pytest.raises(ApiError, match="too much time or memory"):
        await checks.check(Structure(StructureKind.REGEX, "killed twice", "x"))


async def test_a_check_that_does_not_get_to_compute_says_nothing_of_the_structure(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    structure = Structure(StructureKind.REGEX, "late", "x")
    with monkeypatch.context() as patch:
        patch.setattr(grammar_checks, "_MAX_SECONDS_EACH", 0.0)
        with pytest.raises(ApiError, match="too busy") as caught:
            await checks.check(structure)
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert await checks.check(structure)


async def test_a_fault_between_question_and_answer_shifts_no_later_answer(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty() -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(selectors, "DefaultSelector", faulty)
        with pytest.raises(RuntimeError, match="a fault"):
            await checks.check(Structure(StructureKind.REGEX, "asked, never answered", "x"))
    assert "the next one" in await checks.check(Structure(StructureKind.REGEX, "the next one", "x"))


async def test_a_process_that_a_grammar_has_killed_is_replaced(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind, source, words), *_ = [hostile for hostile in HOSTILE if hostile[2] == "too much"]
    with pytest.raises(ApiError, match=words):
        await checks.check(Structure(kind, f" {source}", "x"))
    assert await checks.check(Structure(StructureKind.REGEX, "after it", "x"))
    # And one that has done its share.
    monkeypatch.setattr(grammar_checks, "_MAX_CHECKS_OF_PROCESS", 1)
    for number in range(2):
        assert await checks.check(Structure(StructureKind.REGEX, f"number {number}", "x"))
