"""Strict tools with tool choice `auto`: every call matches its schema, and everything else can be said as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.chat.answer_grammar import AnswerForm, Tags
from services.router.chat.call_grammar import Schemas, calls_grammar, follows_schemas, talk_grammar
from services.router.chat.forms import THINK, TOOL_FORMS
from services.router.chat.parsers.form import Marked, Objects
from services.router.chat.request import ChatRequest
from services.router.chat.strict_tools import strict_schemas
from services.router.chat.tool_grammar import strict_structure
from services.router.chat.tools import OPENAI_PATH, Tool, ToolChoice, ToolMode
from services.router.errors import ApiError
from services.router.generation.options import GenerationOptions
from services.router.grammar.structure import Structure, StructureKind
from services.router.parameters.sampling import SamplingParams, StopConditions
from tests.unit.router.test_answer_grammar import X, accepts, ids_of, tags_of

FOLLOWING = [name for name, form in TOOL_FORMS.items() if follows_schemas(form)]
MARKED = [name for name in FOLLOWING if isinstance(TOOL_FORMS[name].shape, Marked)]
TEXT = Structure(StructureKind.TEXT, "", "tools")
PARAMETERS = {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/T"}}, "required": ["city"],
    "$defs": {"T": {"type": "string"}},
}  # fmt: skip
TOOLS = (Tool("get", "", PARAMETERS, strict=True), Tool("get_time"), Tool("set", "", {"type": "object"}))
GOOD: tuple[str, Any] = ("get", {"city": 'Kö"ln\n'})
FREE: tuple[str, Any] = ("get_time", {"any": [1]})
BAD: list[tuple[str, Any]] = [("get", {"city": 1}), ("get", {}), ("get", {"city": "x", "y": 1}), ("rm", {})]


def request_of(*tools: Tool, mode: ToolMode = ToolMode.AUTO) -> ChatRequest:
    return ChatRequest(
        None, [], GenerationOptions(SamplingParams(), StopConditions()), tools, tool_choice=ToolChoice(mode)
    )


async def schemas_of(request: ChatRequest) -> Schemas:
    structure = strict_structure(request.tools, request.tool_choice, OPENAI_PATH)
    return {} if structure is None else await strict_schemas(request, structure)


def written(name: str, *calls: tuple[str, Any]) -> str:
    return TOOL_FORMS[name].write([(called, json.dumps(given, ensure_ascii=False)) for called, given in calls])


async def form_of(name: str, tags: Tags, *, several: bool = True) -> AnswerForm:
    schemas = await schemas_of(request_of(*TOOLS))
    calls = talk_grammar(TOOLS, TOOL_FORMS[name], tags, several=several, schemas=schemas)
    return AnswerForm(tags_of(THINK, are_tokens=True), THINK, calls=calls)


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize("name", MARKED)
async def test_text_may_stand_before_calls_that_match(name: str, is_token: bool) -> None:
    """`is_token`: whether the marker is a token. Any of the tokenizer's special tokens can stand for it."""
    marker = TOOL_FORMS[name].shape.marker  # type: ignore[union-attr]
    tags = Tags({marker: ids_of("[THINK]")[0]} if is_token else {})
    form = await form_of(name, tags)

    def ids(text: str) -> list[int]:
        return ids_of(text.replace(marker, "[THINK]") if is_token else text)

    for calls in ([GOOD], [FREE], [GOOD, FREE, GOOD], [FREE, GOOD]):
        for before in ("", 'Let me see: {"x": 1}.\n', "<think>Hm.</think>\n", "<think>Hm.</think>\nWell, "):
            assert accepts(form, TEXT, ids(before + written(name, *calls))), (before, calls)
    for bad in BAD:
        for text in (written(name, bad), f"Well. {written(name, bad)}", written(name, GOOD, bad)):
            assert not accepts(form, TEXT, ids(text)), text
    assert not accepts(form, TEXT, ids(f"{marker} is a marker."))
    alone = await form_of(name, tags, several=False)
    assert accepts(alone, TEXT, ids(written(name, GOOD)))
    assert not accepts(alone, TEXT, ids(written(name, GOOD, GOOD)))


@pytest.mark.parametrize("name", FOLLOWING)
async def test_text_is_as_free_as_before(name: str) -> None:
    form = await form_of(name, Tags({}))
    for text in ("", "Hello.", "\n\nA 👋🏽 {", 'It is\n{"x": 1}', "```python\nprint()\n```", "<think>{</think>Hm."):
        assert accepts(form, TEXT, ids_of(text)), text
    # The call's own parser would find calls there.
    for text in ('{"name": "get", "arguments": {"city": 1}}', '[{"name": "rm"}]', '```json\n{"name": "get"}\n```'):
        assert not accepts(form, TEXT, ids_of(text)), text


@pytest.mark.parametrize("name", [name for name in FOLLOWING if isinstance(TOOL_FORMS[name].shape, Objects)])
async def test_calls_without_a_marker_stand_alone(name: str) -> None:
    form = await form_of(name, Tags({}))
    for calls in ([GOOD], [FREE], [GOOD, FREE, GOOD]):
        assert accepts(form, TEXT, ids_of(written(name, *calls))), calls
        assert accepts(form, TEXT, ids_of(f"<think>Hm.</think>\n{written(name, *calls)}")), calls
    for bad in BAD:
        for text in (written(name, bad), written(name, GOOD, bad)):
            assert not accepts(form, TEXT, ids_of(text)), text


@pytest.mark.parametrize("name", FOLLOWING)
async def test_beside_a_structure_calls_match_too(name: str) -> None:
    schemas = await schemas_of(request_of(*TOOLS))
    calls = calls_grammar(TOOLS, TOOL_FORMS[name], Tags({}), several=True, schemas=schemas)
    form = AnswerForm(Tags({}), calls=calls)
    for text in ('{"x": 1}', written(name, GOOD), written(name, FREE, GOOD)):
        assert accepts(form, X, ids_of(text)), text
    for text in ("Hello.", *(written(name, bad) for bad in BAD)):
        assert not accepts(form, X, ids_of(text)), text


async def test_only_tools_that_are_strict_and_free_to_call_have_schemas() -> None:
    assert (await schemas_of(request_of(*TOOLS))).keys() == {"get"}
    assert await schemas_of(request_of(*TOOLS[1:])) == {}
    for mode in (ToolMode.NONE, ToolMode.REQUIRED):
        assert await schemas_of(request_of(*TOOLS, mode=mode)) == {}


async def test_a_tool_s_schema_has_no_definitions_of_other_tools() -> None:
    tools = [Tool(name, "", PARAMETERS, strict=True) for name in ("get", "get_time", "get-t")]
    schemas = await schemas_of(request_of(*tools, Tool("none", strict=True)))
    assert {name: set(schema["$defs"]) for name, schema in schemas.items()} == {
        "get": {"get", "get.defs.T"},
        "get_time": {"get_time", "get_time.defs.T"},
        "get-t": {"get-t", "get-t.defs.T"},
        "none": {"none"},
    }


async def test_a_schema_that_cannot_be_enforced_is_refused_by_name() -> None:
    unknown = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
    tools = (Tool("free", "", unknown), TOOLS[0], Tool("bad", "", unknown, strict=True))
    assert await schemas_of(request_of(*tools[:2]))
    with pytest.raises(ApiError) as caught:
        await schemas_of(request_of(*tools))
    assert caught.value.param == "tools[2].function.parameters"
