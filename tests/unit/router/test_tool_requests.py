"""What a request's tools become: a grammar where a call is asked for, and words where a template knows none."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from services.router.chat.parsers.plain import PLAIN
from services.router.chat.tool_grammar import structure_of
from services.router.chat.tool_prompt import calls_as_text, describe_tools, with_instructions
from services.router.chat.tools import MAX_SCHEMA_DEPTH, MAX_TOOLS, OPENAI_PATH, Tool, ToolChoice, ToolMode, check_tools
from services.router.errors import ApiError
from services.router.grammar.structure import StructureKind
from services.router.grammar.trial import byte_tokenizer
from services.router.template.chat_template import ChatTemplate
from shared.grammar import compile_grammar
from tests.unit.router.schema_instances import accepts

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "const": {"const": {"$ref": "#/x"}}},
    "required": ["root"],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
TOOLS = (Tool("plant", parameters=TREE), Tool("get_time"))


def fits(value: object, choice: ToolChoice, tools: Sequence[Tool] = TOOLS) -> bool:
    structure = structure_of(tools, choice, OPENAI_PATH)
    assert structure is not None
    return accepts(compile_grammar(structure.to_grammar(), byte_tokenizer()), value)


@pytest.mark.parametrize(
    ("calls", "valid"),
    [
        ([{"name": "plant", "parameters": {"root": {"next": {"next": {}}}}}], True),
        ([{"name": "plant", "parameters": {"root": {"next": {"next": 1}}}}], False),
        ([{"name": "plant", "parameters": {"root": {}, "const": {"$ref": "#/x"}}}], True),
        ([{"name": "plant", "parameters": {}}], False),
        ([{"name": "get_time", "parameters": {}}], True),
        ([{"name": "get_time", "parameters": {"a": 1}}], False),
        ([{"name": "get_time"}], False),
        ([{"name": "rm", "parameters": {}}], False),
        ([], False),
        ({}, False),
    ],
)
def test_a_required_call_is_one_of_the_tools_and_fits_its_schema(calls: object, valid: bool) -> None:
    assert fits(calls, ToolChoice(ToolMode.REQUIRED)) is valid


def test_one_call_is_all_where_several_are_not_wanted() -> None:
    calls = [{"name": "get_time", "parameters": {}}] * 2
    assert fits(calls, ToolChoice(ToolMode.REQUIRED))
    assert not fits(calls, ToolChoice(ToolMode.REQUIRED, parallel=False))


def test_a_named_function_is_its_own_schema() -> None:
    structure = structure_of(TOOLS, ToolChoice(ToolMode.NAMED, "plant"), OPENAI_PATH)
    assert structure is not None
    assert structure.kind is StructureKind.JSON_SCHEMA
    assert json.loads(structure.source) == TREE | {"additionalProperties": False}
    assert not fits([], ToolChoice(ToolMode.NAMED, "get_time"))


def holder(value: int, reference: str, definitions: str = "$defs", /, **identifiers: str) -> dict[str, Any]:
    """Parameters of which `n` is what the reference leads to: this value."""
    return {
        "$schema": identifiers.pop("schema", "https://json-schema.org/draft/2020-12/schema"),
        "properties": {"n": {"$ref": reference}, "others": {"items": {"$ref": "#"}}},
        "required": ["n"],
        definitions: {"N": {"enum": [value], **{f"${name}": text for name, text in identifiers.items()}}},
    }


DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
DYNAMIC = {"$dynamicAnchor": "N", "properties": {"n": {"$dynamicRef": "#N"}}}
# Parameters whose member `n` is 3, and such that have the same names for other things.
SAME_NAMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointers": (holder(3, "#/$defs/N"), holder(4, "#/$defs/N")),
    "a resource's pointer": ({"$id": "http://a/b", **holder(3, "#/$defs/N")}, holder(4, "#/$defs/N")),
    "resources": ({"$id": "a.json", **holder(3, "a.json#/$defs/N")}, {"$id": "a.json", **holder(4, "#/$defs/N")}),
    "resources within": (holder(3, "n", id="n"), holder(4, "n", id="n")),
    "anchors": (holder(3, "#n", anchor="n"), holder(4, "#n", anchor="n")),
    "drafts": (
        holder(3, "#n", "definitions", schema=DRAFT_7, id="#n"),
        holder(4, "#/definitions/N", "definitions", schema=DRAFT_4),
    ),
    "a name that needs escapes": (
        holder(3, "#/$defs/a~1b%25") | {"$defs": {"a/b%": {"const": 3}}},
        holder(4, "#/$defs/a~1b%25") | {"$defs": {"a/b%": {"const": 4}}},
    ),
}


@pytest.mark.parametrize("name", SAME_NAMES)
def test_each_function_s_schema_is_a_document_of_its_own(name: str) -> None:
    first, second = SAME_NAMES[name]
    tools, choice = (Tool("f", parameters=first), Tool("g", parameters=second)), ToolChoice(ToolMode.REQUIRED)
    for called, value in (("f", 3), ("g", 4)):
        for given in (3, 4):
            for arguments in ({"n": given}, {"n": value, "others": [{"n": given}]}):
                assert fits([{"name": called, "parameters": arguments}], choice, tools) is (given == value)


def test_a_dynamic_reference_leads_to_no_other_function() -> None:
    needy = {**DYNAMIC, "required": ["z"]}
    tools = (Tool("f", parameters=DYNAMIC), Tool("g", parameters=needy))
    for called, arguments, is_right in (("f", {"n": {}}, True), ("g", {"z": 1, "n": {}}, False)):
        assert fits([{"name": called, "parameters": arguments}], ToolChoice(ToolMode.REQUIRED), tools) is is_right


NAMED = {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    ("parameters", "is_closed"),
    [
        ({"properties": NAMED}, True),
        ({"properties": NAMED, "required": ["a"]}, True),
        ({"properties": NAMED, "required": ["a", "b"]}, False),
        ({"properties": NAMED, "additionalProperties": {"type": "string"}}, False),
        ({"properties": NAMED, "additionalProperties": True}, False),
        ({"properties": NAMED, "allOf": [{"properties": {"b": {}}, "required": ["b"]}]}, False),
        ({"properties": NAMED, "minProperties": 2}, False),
        # No schemas, which are refused elsewhere.
        ({"properties": NAMED, "required": 5}, False),
        ({"properties": NAMED, "required": [[]]}, False),
        ({"properties": 5}, False),
        ({}, False),
    ],
)
def test_arguments_that_a_function_does_not_name_are_not_written(parameters: dict[str, Any], is_closed: bool) -> None:
    structure = structure_of([Tool("f", parameters=parameters)], ToolChoice(ToolMode.NAMED, "f"), OPENAI_PATH)
    assert structure is not None
    closed = {"additionalProperties": False} if is_closed else {}
    assert json.loads(structure.source) == {"type": "object", **parameters, **closed}


def test_a_free_model_has_no_grammar() -> None:
    assert structure_of(TOOLS, ToolChoice(), OPENAI_PATH) is None


def nested(depth: int) -> dict[str, Any]:
    """So many lists and objects in one another."""
    value: list[Any] = []
    for _ in range(depth - 2):
        value = [value]
    return {"enum": value}


def test_a_schema_may_be_nested_as_deep_as_a_body() -> None:
    tools = [Tool("f", parameters=nested(MAX_SCHEMA_DEPTH))]
    assert check_tools(tools, ToolChoice(), OPENAI_PATH) > 2 * (MAX_SCHEMA_DEPTH - 1)
    template = ChatTemplate("{{ tools | tojson }}", {})
    assert template.render([], tools=[tool.to_template() for tool in tools]).count("[") == MAX_SCHEMA_DEPTH


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([Tool("")], "tools[0].function.name"),
        ([Tool("é")], "tools[0].function.name"),
        ([Tool("f"), Tool("f")], "tools[1].function.name"),
        ([Tool(f"f{index}") for index in range(MAX_TOOLS + 1)], "tools"),
        ([Tool("f", parameters={"x": "y" * 65_536})], "tools[0].function.parameters"),
        ([Tool("f", parameters=nested(MAX_SCHEMA_DEPTH + 1))], "tools[0].function.parameters"),
        ([Tool("f", parameters=nested(20_000))], "tools[0].function.parameters"),
        ([Tool(f"f{index}", "x" * 10_000) for index in range(110)], "tools"),
    ],
)
def test_tools_are_bounded(tools: list[Tool], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_tools(tools, ToolChoice(), OPENAI_PATH)
    assert caught.value.param == param


def test_instructions_go_where_the_template_has_a_place_for_them() -> None:
    user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "Be kind."}
    assert with_instructions([user], "T", shows_system=True) == [{"role": "system", "content": "T"}, user]
    assert with_instructions([system, user], "T", shows_system=True) == [
        {"role": "system", "content": "Be kind.\n\nT"},
        user,
    ]
    assert with_instructions([user], "T", shows_system=False) == [{"role": "user", "content": "T\n\nHi"}]
    # Beside a system message that the template leaves out, the instructions would be lost with it.
    told = {"role": "user", "content": "Be kind.\n\nT\n\nHi"}
    assert with_instructions([system, user], "T", shows_system=False) == [told]
    assert (user["content"], system["content"]) == ("Hi", "Be kind.")


def test_a_model_is_told_how_to_call() -> None:
    text = describe_tools(TOOLS, PLAIN, parallel=False)
    assert '{"name": "get_time", "parameters": {"type": "object", "properties": {}}}' in text
    assert text.count("NAME") == 1
    assert describe_tools(TOOLS, PLAIN, parallel=True).count("NAME") == 3
    assert "NAME" not in describe_tools(TOOLS, None, parallel=True)


def test_results_of_several_calls_are_one_turn_of_the_user() -> None:
    def call(call_id: str, name: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Wait.", "tool_calls": [call("1", "f"), call("2", "g")]},
        {"role": "tool", "content": "one", "tool_call_id": "1"},
        {"role": "tool", "content": "two", "tool_call_id": "2"},
        {"role": "user", "content": "So?"},
        {"role": "user", "content": "Well?"},
    ]
    before = json.dumps(messages)
    assert calls_as_text(messages, PLAIN) == [
        {
            "role": "assistant",
            "content": 'Wait.\n[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
        },
        {"role": "user", "content": "Result of f:\none\n\nResult of g:\ntwo\n\nSo?"},
        {"role": "user", "content": "Well?"},
    ]
    assert json.dumps(messages) == before


def test_a_result_is_not_copied_with_each_one_that_follows() -> None:
    """Bytes are counted that each of many results takes: the text of those before it would be many more."""
    taken: list[int] = []

    def conversation() -> Iterator[dict[str, Any]]:
        for _ in range(300):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            yield {"role": "tool", "content": "x" * 1_000, "tool_call_id": "1"}
            taken.append(tracemalloc.get_traced_memory()[1] - before)

    tracemalloc.start()
    try:
        (written,) = calls_as_text(conversation(), PLAIN)
    finally:
        tracemalloc.stop()
    assert written["content"].count("x" * 1_000) == 300
    assert max(taken) < 10_000
