"""Arguments in tags take their types from the function's schema, and calls are read where tags are missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.chat.forms import TOOL_FORMS
from services.router.chat.parsers.literals import literal_json
from services.router.chat.parsers.schema_values import ArgumentTypes, as_json
from services.router.chat.text_parser import TextParser
from services.router.dispatch.work import FinishReason
from services.router.generation.choice_delta import ChoiceDelta
from tests.unit.router.texts import calls_of, play, said, tagged

QWEN = tagged(calls=TOOL_FORMS["qwen3_coder"].read)

COLOR = {"enum": ["red", "green"]}
PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object"},
        "color": COLOR,
        "level": {"enum": [1, 2]},
        "mixed": {"enum": ["auto", 1, None]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "note": {"type": ["string", "null"]},
        "id": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        "size": {"type": ["number", "string"]},
        "ids": {"anyOf": [{"type": "array"}, {"type": "string"}]},
        "point": {"$ref": "#/$defs/Point"},
        "paint": {"allOf": [{"$ref": "#/$defs/Color"}]},
        "loop": {"$ref": "#/$defs/Loop"},
        "untyped": {"description": "Anything."},
        "named_by_python": {"type": "Bool"},
    },
    "$defs": {
        "Point": {"properties": {"x": {"type": "integer"}}},
        "Color": COLOR,
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
    },
}
FUNCTIONS = {
    "f": PARAMETERS,
    "open": {"type": "object", "additionalProperties": {"type": "integer"}},
    "bare": None,
}

# (parameter, text, value)
VALUES: list[tuple[str, str, Any]] = [
    ("text", "5", "5"),
    ("text", "null", "null"),
    ("text", "True", "True"),
    ("text", '{"a": 1}', '{"a": 1}'),
    ("count", "5", 5),
    ("count", " 5 ", 5),
    ("count", "+5", 5),
    ("count", "12345678901234567890", 12345678901234567890),
    ("count", "five", "five"),
    ("count", "null", None),
    ("count", "None", None),
    ("count", "5.0", 5.0),
    ("count", "[1]", [1]),
    ("count", "['a']", "['a']"),
    ("ratio", "5", 5),
    ("ratio", "0.25", 0.25),
    ("ratio", "1e3", 1000.0),
    ("ratio", ".5", 0.5),
    ("ratio", "NaN", "NaN"),
    ("ratio", "1e999", "1e999"),
    ("deep", "True", True),
    ("deep", "FALSE", False),
    ("deep", "true", True),
    ("deep", "1", True),
    ("deep", "yes", "yes"),
    ("tags", '["a", "b"]', ["a", "b"]),
    ("tags", "['a', 'it\\'s', None, True]", ["a", "it's", None, True]),
    ("tags", "('a', 'b')", ["a", "b"]),
    ("tags", "a, b", "a, b"),
    ("tags", "[NaN]", "[NaN]"),
    ("where", "{'city': 'Köln', 'dry': False}", {"city": "Köln", "dry": False}),
    ("where", '{"city": "Köln"}', {"city": "Köln"}),
    ("where", '"{\\"city\\": \\"Köln\\"}"', {"city": "Köln"}),
    ("where", "\"{'city': 'Köln'}\"", {"city": "Köln"}),
    ("where", "{'a', 'b'}", "{'a', 'b'}"),
    ("where", '"{\\"\\ud800\\": 1}"', '{"\ud800": 1}'),
    ("color", "red", "red"),
    ("color", "1", "1"),
    ("level", "1", 1),
    ("mixed", "auto", "auto"),
    ("mixed", "1", 1),
    ("mixed", "null", None),
    ("limit", "3", 3),
    ("limit", "None", None),
    ("note", "null", None),
    ("note", "None", None),
    ("note", "nullable", "nullable"),
    ("note", "", ""),
    ("note", "5", "5"),
    ("id", "5", 5),
    ("id", "a5", "a5"),
    # As a number it would lose characters.
    ("id", "007", "007"),
    ("id", "-0", "-0"),
    ("id", "+491701234567", "+491701234567"),
    ("id", "1_000", "1_000"),
    ("id", "٣", "٣"),
    ("id", "12345678901234567890", "12345678901234567890"),
    ("size", "-0.25", -0.25),
    ("size", "5.0", 5.0),
    ("size", "1e5", "1e5"),
    ("size", "1.10", "1.10"),
    ("size", ".5", ".5"),
    ("size", "0.1000000000000000055", "0.1000000000000000055"),
    ("ids", "[1]", [1]),
    ("ids", '{"a": 1}', '{"a": 1}'),
    ("point", '{"x": 1}', {"x": 1}),
    ("point", "{'x': 1}", {"x": 1}),
    ("paint", "5", "5"),
    ("loop", "5", 5),
    ("untyped", "5", "5"),
    ("named_by_python", "True", True),
    ("unknown", "5", "5"),
]


def call(function: str, *parameters: tuple[str, str]) -> str:
    written = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in parameters)
    return f"<tool_call>\n<function={function}>\n{written}</function>\n</tool_call>"


@pytest.mark.parametrize(("key", "text", "value"), VALUES)
def test_a_value_has_a_type_of_its_schema(key: str, text: str, value: Any) -> None:
    for pieces in ([call("f", (key, text))], list(call("f", (key, text)))):
        message = play(QWEN, pieces, functions=FUNCTIONS)
        assert message.content == ""
        ((_, arguments),) = calls_of(message)
        assert arguments == {key: value}
        assert type(arguments[key]) is type(value)


def test_what_a_schema_does_not_name_is_of_its_additional_properties() -> None:
    assert calls_of(play(QWEN, [call("open", ("x", "5"))], functions=FUNCTIONS)) == [("open", {"x": 5})]
    assert calls_of(play(QWEN, [call("bare", ("x", "5"))], functions=FUNCTIONS)) == [("bare", {"x": "5"})]


def test_a_chain_of_references_has_no_limit_and_a_wrong_one_means_nothing() -> None:
    chain: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)}
    chain["d3000"] = {"type": "integer"}
    schema = {"properties": {"x": {"$ref": "#/$defs/d0"}, "y": {"$ref": "https://example.com/x"}}, "$defs": chain}
    types = ArgumentTypes({"f": schema})
    assert types.of("f", "x") == {"integer"}
    assert types.of("f", "y") == {"string"}


def test_a_long_literal_is_read_where_it_is_one_string() -> None:
    assert literal_json(f"'{'x' * 100_000}'") == f'"{"x" * 100_000}"'
    assert literal_json(f"[{'1, ' * 1_364}1]") == json.dumps([1] * 1_365)
    for source in (f"[{'1, ' * 1_365}1]", "'x' " * 1_025, "1" * 4_097):
        assert literal_json(source) is None


def test_a_long_value_is_no_python_literal() -> None:
    """JSON is read in C; a literal of this length would hold up the event loop."""
    assert json.loads(as_json(f"[{'1, ' * 8_000}1]", {"array"})) == [1] * 8_001
    for length, is_literal in ((600, True), (1_000, False)):
        source = f"[{'True, ' * length}]"
        assert json.loads(as_json(source, {"array"})) == ([True] * length if is_literal else source)


def test_strings_come_as_they_are_written_even_if_they_may_be_null() -> None:
    for key in ("text", "note"):
        parser = TextParser(tagged(calls=TOOL_FORMS["qwen3_coder"].read, functions=FUNCTIONS))
        text = f"<tool_call>\n<function=f>\n<parameter={key}>\nnullable, no"
        delta = parser.parse(ChoiceDelta(0, text, [1], [], None))
        assert "".join(call.arguments for call in delta.tool_calls) == f'{{"{key}": "nullable, no'


# (text, content, calls)
UNTIDY: list[tuple[str, str, list[tuple[str, Any]]]] = [
    # No outer tag, or none that ends the call.
    ("Sure.\n<function=f>\n<parameter=count>\n5\n</parameter>\n</function>", "Sure.", [("f", {"count": 5})]),
    ("<function=bare>\n</function>\n</tool_call>", "", [("bare", {})]),
    (
        "<function=bare></function>\n<function=f><parameter=count>5</parameter></function>",
        "",
        [("bare", {}), ("f", {"count": 5})],
    ),
    (
        "<tool_call>\n<function=bare></function>\n<function=bare></function>\n</tool_call>",
        "",
        [("bare", {}), ("bare", {})],
    ),
    # Only the request's functions are called without it.
    ("Write <function=x></function>", "Write <function=x></function>", []),
    ("<function=bare", "<function=bare", []),
    ("a <function=f> b", "a <function=f> b", []),
    # No end of a parameter.
    (
        "<tool_call>\n<function=f>\n<parameter=text>\nKöln\n<parameter=count>\n5\n</function>\n</tool_call>",
        "",
        [("f", {"text": "Köln", "count": 5})],
    ),
    (
        "<tool_call>\n<function=f>\n<parameter=count>5\n<parameter=deep>True\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {"count": 5, "deep": True})],
    ),
    (
        "<tool_call>\n<function=bare>\n<parameter=a>\n1\n<parameter=b>\n2\n</function></tool_call> Done.",
        " Done.",
        [("bare", {"a": "1", "b": "2"})],
    ),
    ("<function=f>\n<parameter=text>\nKöln\n</function>\n", "", [("f", {"text": "Köln"})]),
    (
        "<tool_call><function=f><parameter=text><parameter=count>5</parameter></function></tool_call>",
        "",
        [("f", {"text": "", "count": 5})],
    ),
    # No end of a parameter, and another call.
    *(
        (
            f"{begin}<function=f>\n<parameter=text>\na\n{end}{begin}<function=bare>\n</function>",
            "",
            [("f", {"text": "a"}), ("bare", {})],
        )
        for begin, end in (
            ("", "</function>\n"),
            ("<tool_call>\n", "</function>\n"),
            ("<tool_call>\n", "</function></tool_call>\n"),
            ("<tool_call>\n", "</tool_call>\n"),
            ("<tool_call>", "</tool_call>"),
        )
    ),
    ("<tool_call>\n<function=f>\n<parameter=text>\na\n</tool_call>\nDone.", "\nDone.", [("f", {"text": "a"})]),
    # Tags that are a value's own text: of no parameter of the function, of one that was there, within a line.
    *(
        (call("f", ("text", text), ("count", "5")), "", [("f", {"text": text, "count": 5})])
        for text in (
            "a\n<parameter=x>\nb",
            "a\n<parameter=text>\nb",
            "a <parameter=count> b",
            "a\n</function>\nb",
            "\n</function>\n\nb </function>",
            "a\n</func\n<param",
            "a\n<parameter=count\n</functio",
            "</function",
            "a\n</function>\n<function=x>\nb",
            "a\n</function>\n<function=\nb",
            "a </tool_call> <function=bare> b",
        )
    ),
]


@pytest.mark.parametrize(("text", "content", "calls"), UNTIDY)
def test_calls_are_read_where_tags_are_missing(text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    for pieces in ([text], list(text)):
        message = play(QWEN, pieces, functions=FUNCTIONS)
        assert (message.content, calls_of(message)) == (content, calls)


@pytest.mark.parametrize("length", range(1, 60))
def test_a_call_that_is_cut_has_what_was_there(length: int) -> None:
    text = "<tool_call>\n<function=f>\n<parameter=text>\nab\n</function>\n</tool_call>"
    start = text.index("ab")
    for pieces in ([text[:length]], list(text[:length])):
        message = play(QWEN, pieces, FinishReason.LENGTH, functions=FUNCTIONS)
        if message.tool_calls:
            assert calls_of(message) == [("f", {"text": text[start : min(length, start + 2)]})]
        else:
            assert said(message)[0] == text[:length]
            assert length < start
