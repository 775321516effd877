"""Strict tools with tool choice `auto`: every call matches its schema, and everything else can be said as before."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from services.router.chat.answer_grammar import AnswerForm, Tags
from services.router.chat.call_grammar import calls_grammar
from services.router.chat.forms import THINK, TOOL_FORMS
from services.router.chat.message import Message
from services.router.chat.message_form import Asked
from services.router.chat.parsers.form import Marked, Schemas, ToolForm
from services.router.chat.request import ChatRequest
from services.router.chat.strict_tools import strict_schemas
from services.router.chat.tagged_messages import TaggedMessages
from services.router.chat.text_parser import TextPlan
from services.router.chat.tool_grammar import strict_structure
from services.router.chat.tools import OPENAI_PATH, Tool, ToolChoice, ToolMode
from services.router.errors import ApiError
from services.router.generation.options import GenerationOptions
from services.router.grammar.structure import Structure, StructureKind
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.detokenizer import Vocabulary
from services.router.text.threads import TextThreads
from shared.grammar import compile_grammar
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level
from tests.unit.router.test_answer_grammar import X, accepts, ids_of
from tests.unit.router.texts import calls_of, play

THREADS = TextThreads(1)
FOLLOWING = [name for name, form in TOOL_FORMS.items() if form.shape is not None]
BESIDE = [name for name, form in TOOL_FORMS.items() if form.shape is not None and form.shape.fits_structures]
MARKED = [name for name in FOLLOWING if isinstance(TOOL_FORMS[name].shape, Marked)]
TEXT = Structure(StructureKind.TEXT, "", "tools")
PARAMETERS = {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/T"}}, "required": ["city"],
    "$defs": {"T": {"type": "string"}},
}  # fmt: skip
TOOLS = (Tool("get", "", PARAMETERS, strict=True), Tool("get_time"), Tool("set", "", {"type": "object"}))
GOOD: tuple[str, Any] = ("get", {"city": 'Kö"ln\n'})
FREE: tuple[str, Any] = ("get_time", {"any": "[1]"})
BAD: list[tuple[str, Any]] = [("get", {}), ("get", {"city": "x", "y": 1}), ("rm", {})]
# Function tags have no quotes, so 1 is a string there.
BAD_BY_FORM = {
    name: BAD if name in ("qwen3_coder", "seed_oss") else [*BAD, ("get", {"city": 1})] for name in FOLLOWING
}  # fmt: skip


def request_of(*tools: Tool, mode: ToolMode = ToolMode.AUTO) -> ChatRequest:
    return ChatRequest(
        None, [], GenerationOptions(SamplingParams(), StopConditions()), tools, tool_choice=ToolChoice(mode)
    )


async def schemas_of(request: ChatRequest, form: ToolForm | None = None) -> Schemas:
    structure = strict_structure(request.tools, request.tool_choice, OPENAI_PATH)
    return {} if structure is None else await strict_schemas(request, structure, form, THREADS)


def written(name: str, *calls: tuple[str, Any]) -> str:
    return TOOL_FORMS[name].write([(called, json.dumps(given, ensure_ascii=False)) for called, given in calls])


class Case:
    """The grammar and the reader of answers in one form. `are_tokens`: whether its tags are special tokens."""

    def __init__(
        self,
        name: str,
        schemas: Schemas,
        *,
        are_tokens: bool = False,
        reasoning: bool = False,
        several: bool = True,
        tools: tuple[Tool, ...] = TOOLS,
    ) -> None:
        form = TOOL_FORMS[name]
        self._tokenizer = Tokenizer.from_str(byte_level().to_str())
        if are_tokens:
            self._tokenizer.add_special_tokens([*form.tokens, *THINK.tokens])
        choice = ToolChoice(parallel=several)
        self._functions = {tool.name: tool.parameters for tool in tools}
        asked = Asked(tools, choice, has_structure=False, may_think=True, is_continued=False, schemas=schemas)
        messages = TaggedMessages(THINK if reasoning else None, form)
        self.plan = messages.plan(asked, "", Vocabulary(self._tokenizer))
        ids = {tag: self._tokenizer.token_to_id(tag) for tag in self.plan.tags}
        grammar = self.plan.grammar(Tags({tag: token_id for tag, token_id in ids.items() if token_id is not None}))
        library = LLTokenizer(self._tokenizer.to_str(), self._tokenizer.get_vocab_size(), [EOS_TOKEN_ID])
        self._matcher = compile_grammar(grammar.around(TEXT.to_grammar()), library)

    def accepts(self, text: str) -> bool:
        token_ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        matcher = self._matcher.deep_copy()
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())

    def read(self, text: str) -> Message:
        return play(TextPlan(self.plan), [text], functions=self._functions)


def match(message: Message) -> bool:
    """Whether all calls of strict tools match, and no unknown tool is called."""
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return all(
        jsonschema.Draft202012Validator(PARAMETERS | {"additionalProperties": False}).is_valid(given)
        if name == "get"
        else name in ("get_time", "set") and isinstance(given, dict)
        for name, given in calls
    )


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("are_tokens", [False, True])
@pytest.mark.parametrize("name", MARKED)
async def test_text_may_stand_before_calls_that_match(name: str, are_tokens: bool, reasoning: bool) -> None:
    schemas = await schemas_of(request_of(*TOOLS))
    case = Case(name, schemas, are_tokens=are_tokens, reasoning=reasoning)
    thoughts = ("", "<think>\nHm.\n</think>\n\n") if reasoning else ("",)
    for calls in ([GOOD], [FREE], [GOOD, FREE, GOOD], [FREE, GOOD]):
        for thought in thoughts:
            for before in ("", 'Let me see: {"x": 1}.\n', '[{"name": "get"}]'):
                text = thought + before + written(name, *calls)
                assert case.accepts(text), text
                assert case.accepts(f"{text}\n"), text
                message = case.read(text)
                assert message.content.strip() == before.strip()
                assert calls_of(message) == calls
    for bad in BAD_BY_FORM[name]:
        for before in (*thoughts, "Well. ", *(f"{thought}Well. " for thought in thoughts)):
            for text in (written(name, bad), written(name, GOOD, bad)):
                assert not case.accepts(before + text), before + text
    marker = TOOL_FORMS[name].shape.marker  # type: ignore[union-attr]
    assert not case.accepts(f"{marker} is a marker.")
    alone = Case(name, schemas, are_tokens=are_tokens, several=False)
    assert alone.accepts(written(name, GOOD))
    assert not alone.accepts(written(name, GOOD, GOOD))


@pytest.mark.parametrize("name", FOLLOWING)
async def test_text_is_as_free_as_before(name: str) -> None:
    case = Case(name, await schemas_of(request_of(*TOOLS)), reasoning=True)
    texts = ["", "Hello.", "\n\nA 👋🏽 {", 'It is\n{"x": 1}', "<think>{</think>Hm.", "See </tool_call> and [ARGS]."]
    texts.append('```json\n{"name": "get", "arguments": {"city": 1}}\n```')
    if name in MARKED:
        texts += ['{"name": "Bob", "age": 3}', '[{"name": "get", "arguments": {"city": 1}}]', "{}"]
    for text in texts:
        # Wherever the model is in such a text, it can end.
        for end in range(text.find("</think>") + 8 if "</think>" in text else 0, len(text) + 1):
            assert case.accepts(text[:end]), text[:end]
        message = case.read(text)
        assert (message.content, message.tool_calls) == (text.rpartition("</think>")[2], [])


@pytest.mark.parametrize("name", [name for name in FOLLOWING if name not in MARKED])
async def test_calls_without_a_marker_stand_alone(name: str) -> None:
    case = Case(name, await schemas_of(request_of(*TOOLS)), reasoning=True)
    for before in ("", "\n\n", "<think>Hm.</think>\n\n\n"):
        for calls in ([GOOD], [FREE], [GOOD, FREE, GOOD]):
            text = before + written(name, *calls)
            assert case.accepts(text), text
            assert case.accepts(f"{text}\n"), text
            assert calls_of(case.read(text)) == calls
        for bad in BAD_BY_FORM[name]:
            for text in (written(name, bad), written(name, GOOD, bad)):
                assert not case.accepts(before + text), before + text
        assert not case.accepts(f"{before}[1]")


@pytest.mark.parametrize("are_tokens", [False, True])
@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("name", FOLLOWING)
async def test_no_call_escapes_its_schema(name: str, reasoning: bool, are_tokens: bool) -> None:
    """Whatever the grammar accepts, its reader finds only calls that match: tried with tags, spaces and calls in random
    orders."""
    case = Case(name, await schemas_of(request_of(*TOOLS)), reasoning=reasoning, are_tokens=are_tokens)
    chance = random.Random(name)
    pieces = [
        written(name, GOOD), written(name, FREE), *(written(name, bad) for bad in BAD_BY_FORM[name]),
        '{"id": 1, "name": "get", "arguments": {"city": 1}}', '[{"name": "get", "arguments": {"city": 1}}]',
        "<think>", "</think>", "```json\n", "```", "\n", " ", "; ", ", ", "Well.", "{", "]",
        *TOOL_FORMS[name].tokens, "<tool_call>", "<|python_tag|>",
    ]  # fmt: skip
    num_accepted = num_called = 0
    for _ in range(100):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 5)))
        if case.accepts(text):
            message = case.read(text)
            assert match(message), text
            num_accepted += 1
            num_called += bool(message.tool_calls)
    assert num_accepted > 10
    assert num_called > 0


@pytest.mark.parametrize("are_tokens", [False, True])
async def test_mistral_s_newer_forms_match_too(are_tokens: bool) -> None:
    case = Case("mistral", await schemas_of(request_of(*TOOLS)), are_tokens=are_tokens)
    for middle in ("", "[ARGS]", "[CALL_ID]a1b2c3d4e[ARGS]"):
        text = written("mistral", GOOD, FREE).replace("{", f"{middle}{{")
        assert case.accepts(text), text
        assert calls_of(case.read(text)) == [GOOD, FREE]
        assert not case.accepts(written("mistral", ("get", {})).replace("{", f"{middle}{{"))
    for middle in ("[ARGS][ARGS]", "[CALL_ID]a1b2c3d4e", "[CALL_ID]a1[ARGS]"):
        assert not case.accepts(written("mistral", GOOD).replace("{", f"{middle}{{"))


@pytest.mark.parametrize("name", BESIDE)
async def test_beside_a_structure_calls_match_too(name: str) -> None:
    schemas = await schemas_of(request_of(*TOOLS))
    calls = calls_grammar(TOOLS, TOOL_FORMS[name], Tags({}), several=True, schemas=schemas)
    form = AnswerForm(Tags({}), calls=calls)
    for text in ('{"x": 1}', written(name, GOOD), written(name, FREE, GOOD)):
        assert accepts(form, X, ids_of(text)), text
    for text in ("Hello.", *(written(name, bad) for bad in BAD_BY_FORM[name])):
        assert not accepts(form, X, ids_of(text)), text


async def test_only_tools_that_are_strict_and_free_to_call_have_schemas() -> None:
    assert (await schemas_of(request_of(*TOOLS))).keys() == {"get"}
    assert await schemas_of(request_of(*TOOLS[1:])) == {}
    for mode in (ToolMode.NONE, ToolMode.REQUIRED):
        assert await schemas_of(request_of(*TOOLS, mode=mode)) == {}


async def test_a_tool_s_schema_has_the_definitions_that_it_needs_alone() -> None:
    tools = [Tool(name, "", PARAMETERS, strict=True) for name in ("get", "get_time", "get-t")]
    dated = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}
    named = {
        "type": "object",
        "properties": {"a": {"$ref": '#/$defs/b~1c"d'}},
        "$defs": {'b/c"d': {"items": {"$ref": "#/$defs/1~0%25"}}, "1~%": {"type": "null"}, "e": {}},
    }
    tools += [Tool("dated", "", dated, strict=True), Tool("named", "", named, strict=True), Tool("none", strict=True)]
    schemas = await schemas_of(request_of(*tools))
    assert all(set(schemas[name]["$defs"]) == {name, f"{name}.defs.T"} for name in ("get", "get_time", "get-t"))
    assert set(schemas["named"]["$defs"]) == {"named", 'named.defs.b/c"d', "named.defs.1~%"}
    assert set(schemas["none"]["$defs"]) == {"none"}
    assert len(schemas["dated"]["$defs"]) > 1


async def test_a_schema_that_cannot_be_enforced_is_refused_by_name() -> None:
    unknown = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
    tools = (Tool("free", "", unknown), TOOLS[0], Tool("bad", "", unknown, strict=True))
    assert await schemas_of(request_of(*tools[:2]))
    with pytest.raises(ApiError) as caught:
        await schemas_of(request_of(*tools))
    assert caught.value.param == "tools[2].function.parameters"
