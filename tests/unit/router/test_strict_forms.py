"""Strict tools in forms whose arguments are not JSON: what their grammars enforce, and what they refuse."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from services.router.chat.argument_schema import ANY_TEXT, Definitions, TextValue, listed_values
from services.router.chat.forms import TOOL_FORMS
from services.router.chat.parsers import pythonic
from services.router.chat.parsers.alternatives import text_or_calls
from services.router.chat.tools import Tool
from services.router.errors import ApiError
from tests.unit.router.test_strict_tools import Case, request_of, schemas_of, written
from tests.unit.router.texts import calls_of, play, tagged

FORMS = [name for name, form in TOOL_FORMS.items() if form.shape is not None and form.shape.own is not None]
FUNCTION_TAGS = ("qwen3_coder", "seed_oss")
PYTHON = ("pythonic", "llama4_pythonic")
# llguidance makes the grammars of most arguments.
JSON = (*FUNCTION_TAGS, *PYTHON)
STRING = {"type": "string"}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}},
    "required": ["x"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "°F", None]},
        "code": {"type": "string", "pattern": "^[a-z]{2}/[0-9]+$", "title": "Code"},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "a"}, "minItems": 1, "maxItems": 2},
        "at": {"$ref": "#/$defs/Point"},
        "any": {},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["code", "days"],
    "$defs": {"Point": POINT},
}  # fmt: skip
LEAST = {"code": "ab/1", "days": 3}
GOOD = [
    LEAST,
    {"unit": "°F", "code": "ab/1", "days": 14},
    {"unit": None, "code": "ab/1", "note": "", "days": 1, "exact": True},
    {"code": "ab/1", "note": None, "days": 1, "tags": ["banana", 'a"\n']},
    {**LEAST, "at": {"x": -1.5e3, "next": {"x": 1, "next": None}}, "any": "x y", "day": "2024-02-29"},
]
BAD = [
    {"days": 3},
    {"code": "ab/1"},
    {**LEAST, "z": 1},
    {"unit": "K", **LEAST},
    {"code": "abc/1", "days": 3},
    {"code": "ab/1 ", "days": 3},
    {"code": "ab/1", "note": "123456", "days": 3},
    {"code": "ab/1", "days": 0},
    {"code": "ab/1", "days": 15},
    {"code": "ab/1", "days": 1.5},
    {**LEAST, "exact": "yes"},
    {**LEAST, "tags": []},
    {**LEAST, "tags": ["b"]},
    {**LEAST, "tags": ["a", "a", "a"]},
    {**LEAST, "at": {}},
    {**LEAST, "at": {"x": "1"}},
    {**LEAST, "at": {"x": 1, "y": 2}},
    {**LEAST, "day": "2023-02-29"},
]


def tool(schema: dict[str, Any], name: str = "get") -> Tool:
    return Tool(name, "", {"type": "object", **schema}, strict=True)


async def case_of(form: str, *tools: Tool, are_tokens: bool = False) -> Case:
    schemas = await schemas_of(request_of(*tools), TOOL_FORMS[form])
    return Case(form, schemas, are_tokens=are_tokens, tools=tools)


def is_valid(arguments: Any) -> bool:
    schema = PARAMETERS | {"additionalProperties": False}
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(arguments)


@pytest.mark.parametrize("are_tokens", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_arguments_match_their_schema(form: str, are_tokens: bool) -> None:
    case = await case_of(form, tool(PARAMETERS), Tool("other"), are_tokens=are_tokens)
    for arguments in GOOD:
        assert is_valid(arguments)
        for calls in ([("get", arguments)], [("other", {"x": "y"}), ("get", arguments), ("get", LEAST)]):
            text = written(form, *calls)
            assert case.accepts(text), text
            assert calls_of(case.read(text)) == calls
    for arguments in BAD:
        assert not is_valid(arguments)
        assert not case.accepts(written(form, ("get", arguments))), arguments


@pytest.mark.parametrize("form", FORMS)
async def test_no_value_escapes_its_schema(form: str) -> None:
    """Calls with tags and other pieces put into random places: what the grammar accepts is read as calls that match."""
    case = await case_of(form, tool(PARAMETERS), Tool("other"))
    chance = random.Random(form)
    tokens = TOOL_FORMS[form].tokens
    pieces = ["\n", " ", "null", "1", '"', "{", "}", ",", "a", ":", "</parameter>", "<parameter=note>", "</function>"]
    pieces += [*tokens, "<function=get>", "call:get", written(form, ("get", {"days": 0}))]
    pieces += ["'", "=", "(", ")", "[", "]", ", ", "\\", "None", "True", 'note="123456"', "days=0", "get("]
    num_accepted = 0
    for _ in range(2000):
        text = written(form, *(("get", chance.choice(GOOD)) for _ in range(chance.randint(1, 2))))
        for _ in range(chance.randint(1, 2)):
            start = chance.randrange(len(text) + 1)
            text = text[:start] + chance.choice(pieces) + text[start + chance.choice((0, 0, 1, 3)) :]
        if form in PYTHON and chance.random() < 0.5:
            text = text.replace('"', "'")
        if case.accepts(text):
            num_accepted += 1
            for call in case.read(text).tool_calls:
                assert call.name == "other" or is_valid(json.loads(call.arguments)), text
    assert num_accepted > 50


@pytest.mark.parametrize("form", FUNCTION_TAGS)
async def test_every_choice_is_read_alike(form: str) -> None:
    """All choices of a request share a plan, and its reader has to agree with the grammar however much it reads."""
    arguments = {f"p{n}": "x" for n in range(150)}
    properties = {name: {"$ref": "#/$defs/s"} for name in arguments}
    case = await case_of(form, tool({"properties": properties, "$defs": {"s": STRING}}))
    text = written(form, ("get", arguments))
    assert case.accepts(text)
    for _ in range(100):
        assert calls_of(case.read(text)) == [("get", arguments)]


@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_that_is_cut_is_read_without_a_fault(form: str) -> None:
    case = await case_of(form, tool(PARAMETERS))
    text = f"Well.\n{written(form, *(('get', arguments) for arguments in GOOD))}"
    whole = calls_of(case.read(text))
    for end in range(len(text)):
        calls = case.read(text[:end]).tool_calls
        assert [(call.name, json.loads(call.arguments)) for call in calls[:-1]] == whole[: len(calls[:-1])]


@pytest.mark.parametrize("form", FUNCTION_TAGS)
async def test_a_value_that_may_be_a_string_or_another_has_quotes_as_a_string(form: str) -> None:
    size = {"anyOf": [{"type": "string", "enum": ["auto", "1"]}, {"type": "number"}]}
    case = await case_of(form, tool({"properties": {"size": size}, "required": ["size"]}))
    for value, read in (('"auto"', "auto"), ('"1"', "1"), (1, 1), (1.50, 1.5)):
        text = written(form, ("get", {"size": value}))
        assert case.accepts(text), text
        assert calls_of(case.read(text)) == [("get", {"size": read})]
    for value in ("auto", '"big"', True):
        assert not case.accepts(written(form, ("get", {"size": value})))


@pytest.mark.parametrize("form", FORMS)
async def test_other_arguments_follow_if_the_schema_allows_them(form: str) -> None:
    case = await case_of(
        form, tool({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})
    )
    for arguments in ({}, {"a": 1}, {"b": True}, {"a": 1, "b": True, "ab": False}):
        text = written(form, ("get", arguments))
        assert case.accepts(text), text
        assert calls_of(case.read(text)) == [("get", arguments)]
    for arguments in ({"a": True}, {"b": 1}, {"b": True, "a": 1}):
        assert not case.accepts(written(form, ("get", arguments)))


@pytest.mark.parametrize("form", PYTHON)
@pytest.mark.parametrize("name", ["e\u0301", "x\u203f", "हिंदी"])
async def test_names_that_only_the_grammar_takes_for_words_are_read(form: str, name: str) -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}
    case = await case_of(form, tool(schema), Tool("other"))
    calls = [("get", {"a": 1, name: 2}), ("other", {name: "x"}), ("get", {"a": 3})]
    text = written(form, *calls)
    assert case.accepts(text)
    assert calls_of(case.read(text)) == calls
    functions: dict[str, dict[str, Any]] = {"get": {}, "other": {}}
    assert calls_of(play(tagged(calls=TOOL_FORMS[form].read), [text], functions=functions)) == calls


@pytest.mark.parametrize("form", PYTHON)
async def test_many_arguments_can_share_a_long_list_of_values(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[dict[str, Any]] = []

    def counted(found: dict[str, Any]) -> list[Any] | None:
        read.append(found)
        return listed_values(found)

    monkeypatch.setattr(pythonic, "listed_values", counted)
    properties = {f"p{index}": {"$ref": "#/$defs/one", "description": str(index)} for index in range(200)}
    schema = {"properties": properties, "$defs": {"one": {"enum": [*range(5000)]}}}
    case = await case_of(form, tool(schema))
    text = written(form, ("get", {"p0": 4999, "p199": 0}))
    assert case.accepts(text)
    assert not case.accepts(written(form, ("get", {"p0": 5000})))
    assert len(read) < 10, "each argument reads the list again"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (STRING | {"pattern": r"^[\/a]$"}, ["/", "a"], ["b", "\\"]),
        (STRING | {"pattern": r"^[\w/]+$"}, ["a/b"], ["a b"]),
        (STRING | {"pattern": "a\\\nb"}, ["a\nb"], ["a\\nb"]),
        (STRING | {"maxLength": 500}, ["x" * 500], ["x" * 501]),
        (STRING | {"format": "uuid"}, ["0123abcd-0000-1111-2222-0123456789ab"], ["x"]),
        ({"type": "array", "items": STRING, "maxItems": 1}, [[], ["x"]], [["x", "y"]]),
        ({"type": "array", "items": {"enum": []}}, [[]], [["x"]]),
        ({"enum": ["\x7f", "b"]}, ["\x7f"], ["c"]),
        ({"anyOf": [False, STRING]}, ["x"], []),
        # No value matches these.
        ({"enum": []}, [], ["x", ""]),
        (STRING | {"enum": [1]}, [], ["1"]),
        (STRING | {"minLength": 5, "maxLength": 2}, [], ["xxx"]),
        ({"type": []}, [], ["x"]),
        ({"anyOf": []}, [], ["x"]),
        (False, [], ["x"]),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_an_optional_argument_matches_or_is_left_out(
    form: str, schema: Any, good: list[Any], bad: list[Any]
) -> None:
    case = await case_of(form, tool({"properties": {"a": schema}}))
    assert case.accepts(written(form, ("get", {})))
    for value in good:
        text = written(form, ("get", {"a": value}))
        assert case.accepts(text), text
        assert calls_of(case.read(text)) == [("get", {"a": value})]
    for value in bad:
        assert not case.accepts(written(form, ("get", {"a": value}))), value


@pytest.mark.parametrize("name", ["a b", "e\u0301", "हिंदी", "a\x7f", 'a"\\'])
@pytest.mark.parametrize("form", FORMS)
async def test_a_named_argument_is_not_taken_for_another(form: str, name: str) -> None:
    one = tool({"properties": {name: {"type": "integer"}}, "additionalProperties": STRING})
    if form in PYTHON and not name.isidentifier():
        with pytest.raises(ApiError, match="cannot write the argument"):
            await case_of(form, one)
        return
    case = await case_of(form, one)
    text = written(form, ("get", {name: 1, "b": "x"}))
    assert case.accepts(text)
    assert calls_of(case.read(text)) == [("get", {name: 1, "b": "x"})]
    assert not case.accepts(written(form, ("get", {name: "x"})))


@pytest.mark.parametrize("form", FORMS)
async def test_what_is_required_may_stand_apart(form: str) -> None:
    needs_a = {"required": ["a"]}
    beside = {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {"type": "integer"}}}}} | needs_a
    for schema in ({"properties": {"a": {"type": "integer"}}, "allOf": [needs_a]}, beside):
        case = await case_of(form, tool(schema))
        assert case.accepts(written(form, ("get", {"a": 1})))
        assert not case.accepts(written(form, ("get", {})))
        assert not case.accepts(written(form, ("get", {"a": "x"})))


def test_numbers_of_strict_tools_stay_numbers() -> None:
    form = TOOL_FORMS["gemma4"]
    plan = tagged(calls=text_or_calls(form, {"get": {}}))
    for number in ("1e400", "1" * 5000):
        (call,) = play(plan, [form.write([("get", "{}")]).replace("{}", f"{{a:{number}}}")]).tool_calls
        assert call.arguments == f'{{"a": {number}}}'


def nested(depth: int, **members: Any) -> Tool:
    """A chain of definitions, each with the next as its members."""
    definitions: dict[str, Any] = {f"d{depth}": STRING}
    for number in range(depth):
        inner = {key: json.loads(json.dumps(value).replace("NEXT", f"d{number + 1}")) for key, value in members.items()}
        definitions[f"d{number}"] = {"type": "object", "properties": inner}
    return tool({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions})


@pytest.mark.parametrize("form", FORMS)
async def test_definitions_may_be_used_often_deeply_and_in_circles(form: str) -> None:
    reference = {"allOf": [{"$ref": "#/$defs/NEXT"}]}
    wide = nested(12, a=reference, b=reference, c=reference, d=reference)
    tree = {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/tree"}]}}}
    circle = tool({"properties": {"a": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}})
    for one in (wide, circle, nested(40, a={"$ref": "#/$defs/NEXT"})):
        text = written(form, ("get", {"a": {"a": {"a": {}}}}))
        case = await case_of(form, one)
        assert case.accepts(text)
        assert calls_of(case.read(text)) == [("get", {"a": {"a": {"a": {}}}})]
    deep = nested(200, a={"$ref": "#/$defs/NEXT"})
    if form in JSON:
        assert await case_of(form, deep)
    else:
        with pytest.raises(ApiError, match="nested too deeply"):
            await case_of(form, deep)


@pytest.mark.parametrize("form", FORMS)
async def test_schemas_that_take_long_to_read_or_to_compile_are_refused(form: str) -> None:
    definitions: dict[str, Any] = {f"x{n}": {"type": ["integer", "null"], "minimum": n} for n in range(300)}
    definitions["all"] = {"anyOf": [{"$ref": f"#/$defs/x{n}"} for n in range(300)]}
    definitions |= {f"r{n}": {"$ref": "#/$defs/all"} for n in range(300)}
    many = tool({"properties": {f"p{n}": {"$ref": f"#/$defs/r{n}"} for n in range(300)}, "$defs": definitions})
    slow = tool({"properties": {"a": STRING | {"pattern": "a.{2000}b"}}, "required": ["a"]}, "slow")
    for index, tools in enumerate(((many, tool({}, "x")), (tool({}, "x"), slow))):
        with pytest.raises(ApiError, match="Leave out 'strict'") as caught:
            await case_of(form, *tools)
        assert caught.value.param == f"tools[{index}].function.parameters"


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"properties": {"a": STRING}, "allOf": [{"additionalProperties": False}]}, "'additionalProperties'"),
        (
            {
                "properties": {"a": STRING},
                "$ref": "#/$defs/B",
                "$defs": {"B": {"additionalProperties": {"minimum": 1}}},
            },
            "'additionalProperties'",
        ),
        ({"properties": {}, "minProperties": 1, "additionalProperties": True}, "'minProperties'"),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "'anyOf'"),
        ({"properties": {"a": {}}, "required": ["b"]}, "'required'"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_a_schema_that_the_form_cannot_enforce_is_refused(form: str, schema: dict[str, Any], fault: str) -> None:
    tools = (tool({"properties": {}}, "first"), tool(schema))
    assert (await schemas_of(request_of(*tools), TOOL_FORMS["hermes"])).keys() == {"first", "get"}
    with pytest.raises(ApiError, match=f"{fault}.*Leave out 'strict', or require a call") as caught:
        await schemas_of(request_of(*tools), TOOL_FORMS[form])
    assert caught.value.param == "tools[1].function.parameters"


async def test_an_argument_that_function_tags_cannot_write_is_refused() -> None:
    tools = (tool({"properties": {"a>b": {"type": "string"}}}),)
    with pytest.raises(ApiError, match="cannot write the argument 'a>b'"):
        await schemas_of(request_of(*tools), TOOL_FORMS["qwen3_coder"])
    case = await case_of("gemma4", *tools)
    text = written("gemma4", ("get", {"a>b": "c"}))
    assert case.accepts(text)
    assert calls_of(case.read(text)) == [("get", {"a>b": "c"})]


@pytest.mark.parametrize("form", FORMS)
async def test_copies_of_definitions_are_counted(form: str) -> None:
    """In these forms, each argument has its own copy of the definitions that it needs."""
    large = {"type": "object", "properties": {f"field_{n}": {"type": "integer"} for n in range(300)}}
    properties = {f"a{n}": {"type": "array", "items": {"$ref": "#/$defs/large"}, "maxItems": n + 1} for n in range(100)}
    tools = (tool({"properties": properties, "$defs": {"large": large}}),)
    if form in JSON:
        with pytest.raises(ApiError, match="more than 65536 bytes"):
            await schemas_of(request_of(*tools), TOOL_FORMS[form])
    else:
        assert await schemas_of(request_of(*tools), TOOL_FORMS[form])


@pytest.mark.parametrize(
    ("schema", "regex"),
    [
        (True, ANY_TEXT),
        ({"type": "string"}, ANY_TEXT),
        ({"type": "string", "description": "x"}, ANY_TEXT),
        ({"$ref": "#/$defs/a"}, "(?s:.){2,}"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "type": "string"}, "(?s:.){2,}"),
        ({"type": "string", "pattern": "a|b"}, f"{ANY_TEXT}(?:a|b){ANY_TEXT}"),
        ({"type": "string", "pattern": "^(a|b)/"}, rf"(?:(a|b)\/){ANY_TEXT}"),
        ({"type": "string", "pattern": "[$^|]$"}, f"{ANY_TEXT}(?:[$^|])"),
        ({"const": "a"}, "a"),
        ({"anyOf": [{"const": "a"}, {"type": "string", "maxLength": 3}]}, "(?:(?s:.){0,3})|(?:a)"),
        # Each of these is written as JSON.
        ({"type": "string", "pattern": "^a|b"}, None),
        ({"type": "string", "pattern": "a(^b)"}, None),
        ({"type": "string", "pattern": "a", "minLength": 2}, None),
        ({"type": "string", "format": "email"}, None),
        ({"type": "null"}, None),
        ({"type": "integer"}, None),
        ({"minLength": 1}, None),
        ({"enum": ["a", 1]}, None),
        ({"enum": ["a", "b</parameter>"]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ({"anyOf": [{"type": "string"}], "minLength": 1}, None),
        ({"$ref": "#/$defs/loop"}, None),
    ],
)
def test_strings_are_bare_text_if_a_regular_expression_describes_them(schema: Any, regex: str | None) -> None:
    definitions = Definitions(
        {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string", "minLength": 2}, "loop": {"$ref": "#/$defs/loop"}}
    )
    text = TextValue.of(schema, definitions, "</parameter>")
    assert (None if text is None else text.regex) == regex


@pytest.mark.parametrize("form", PYTHON)
async def test_an_argument_in_python_is_json_or_a_plain_literal(form: str) -> None:
    case = await case_of(form, tool(PARAMETERS), Tool("other"))
    given = {"code": "ab/1", "note": None, "days": 3, "exact": True}
    for text in (
        "[get(code='ab/1', note=None, days=3, exact=True)]",
        '[get(code="ab/1",note=null,days=3,exact=true)]\n',
    ):
        assert case.accepts(text), text
        assert calls_of(case.read(text)) == [("get", given)]
    assert case.accepts("[other(x='it', y=False)]")
    assert calls_of(case.read("[other(x='it\"', y=False)]")) == [("other", {"x": 'it"', "y": False})]
    for refused in (
        "[get(code='abc/1', days=3)]",
        "[get(code='ab/1\\'', days=3)]",
        "[get(code=None, days=3)]",
        "[get(days=3, code='ab/1')]",
        "[rm(code='ab/1')]",
        "[1, 2]",
    ):
        assert not case.accepts(refused), refused
    # In a text, nothing is a call.
    text = "Well: [get(days=0)]"
    assert case.accepts(text)
    message = case.read(text)
    assert (message.content, message.tool_calls) == (text, [])
    cut = case.read("[get(code='ab/1', note='a b").tool_calls
    assert [(call.name, call.arguments) for call in cut] == [("get", '{"code": "ab/1", "note": "a b')]
