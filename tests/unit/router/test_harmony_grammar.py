"""What the grammar of a whole answer takes where a model writes in channels, and how it is read."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from services.router.chat.answer_grammar import Tags
from services.router.chat.harmony_messages import HarmonyMessages, HarmonyPlan
from services.router.chat.message_form import Asked
from services.router.chat.parsers.harmony import TOKENS
from services.router.chat.text_parser import TextPlan
from services.router.chat.tools import Tool, ToolChoice, ToolMode
from services.router.grammar.structure import Structure, StructureKind
from services.router.text.detokenizer import Vocabulary
from shared.grammar import compile_grammar
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level
from tests.unit.router.test_answer_grammar import STRUCTURES, X
from tests.unit.router.texts import play, said

TOOLS = (Tool("get_weather"), Tool("get_time"), Tool("get"))
PROMPT = "<|start|>assistant"
THOUGHT = '<|channel|>analysis<|message|>Hm: {"x": 1} <b>👋🏽</b>\n<|end|><|start|>assistant'
FINAL = "<|channel|>final<|message|>"
FREE, REQUIRED, NONE = ToolChoice(), ToolChoice(ToolMode.REQUIRED), ToolChoice(ToolMode.NONE)
ARGUMENTS = '{"city": "Kö\\"ln", "days": [1, {"b": []}]}'
CALLS = [
    f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}",
    f"<|channel|>commentary to=functions.get_time json<|message|>{ARGUMENTS}",
    "<|channel|>analysis to=functions.get<|message|>{}",
    " to=functions.get<|channel|>commentary json<|message|>{}",
    " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{}",
]


@functools.cache
def tokenizer() -> Tokenizer:
    with_tokens = Tokenizer.from_str(byte_level().to_str())
    # The two that end an answer are end tokens.
    with_tokens.add_special_tokens([token for token in TOKENS if token not in ("<|call|>", "<|return|>")])
    return with_tokens


def plan_of(
    tools: tuple[Tool, ...] = (),
    choice: ToolChoice = FREE,
    *,
    may_think: bool = True,
    is_continued: bool = False,
    prompt_end: str = PROMPT,
) -> HarmonyPlan:
    asked = Asked(tools, choice, has_structure=True, may_think=may_think, is_continued=is_continued)
    return HarmonyMessages().plan(asked, prompt_end, Vocabulary(tokenizer()))


def accepts(plan: HarmonyPlan, text: str, structure: Structure = X, *, are_tokens: bool = True) -> bool:
    """`are_tokens`: whether tags are tokens; otherwise they are spelled."""
    from llguidance import LLTokenizer

    library_tokenizer = tokenizer() if are_tokens else byte_level()
    ids = {token: library_tokenizer.token_to_id(token) for token in TOKENS}
    tags = Tags({token: token_id for token, token_id in ids.items() if token_id is not None})
    library = LLTokenizer(library_tokenizer.to_str(), library_tokenizer.get_vocab_size(), [EOS_TOKEN_ID])
    matcher = compile_grammar(plan.grammar(tags).around(structure.to_grammar()), library)
    token_ids = library_tokenizer.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@pytest.mark.parametrize("are_tokens", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_stands_in_the_final_message(structure: Structure, are_tokens: bool) -> None:
    plan, answer = plan_of(), STRUCTURES[structure]
    for text in (
        f"{FINAL}{answer}",
        f"{THOUGHT}{FINAL}{answer}",
        f"<|channel|>analysis<|message|>{THOUGHT.partition('<|message|>')[2]}{FINAL}{answer}",
        f"{THOUGHT}<|channel|>final <|constrain|>json<|message|>{answer}",
        f"{THOUGHT}<|channel|>final<|constrain|>json<|message|>{answer}",
        f"{THOUGHT}<|channel|>final json<|message|>{answer}",
    ):
        assert accepts(plan, text, structure, are_tokens=are_tokens), text
    for text in (
        answer,
        THOUGHT,
        f"{THOUGHT}{answer}",
        f"<|channel|>analysis<|message|>{answer}",
        f"{THOUGHT}{FINAL}Well, {answer}",
        f"{THOUGHT}{FINAL}",
        f"{THOUGHT}<|channel|>commentary<|message|>{answer}",
        f"Hm.{THOUGHT}{FINAL}{answer}",
        *(call for call in CALLS),
    ):
        assert not accepts(plan, text, structure, are_tokens=are_tokens), text


@pytest.mark.parametrize("are_tokens", [True, False])
def test_a_call_may_stand_in_its_place(are_tokens: bool) -> None:
    plan = plan_of(TOOLS)
    for text in (*CALLS, f'{FINAL}{{"x": 1}}'):
        for whole in (text, f"{THOUGHT}{text}"):
            assert accepts(plan, whole, are_tokens=are_tokens), whole
    for text in (
        "<|channel|>commentary to=functions.rm json<|message|>{}",
        "<|channel|>commentary to=get json<|message|>{}",
        "<|channel|>commentary to=functions.getjson<|message|>{}",
        "<|channel|>commentary to=functions.get json<|message|>[]",
        "<|channel|>commentary to=functions.get json<|message|>{",
        f"{CALLS[2]}{CALLS[2]}",
        f'{CALLS[2]}{FINAL}{{"x": 1}}',
    ):
        assert not accepts(plan, text, are_tokens=are_tokens), text


def test_calls_that_are_asked_for_are_the_structure() -> None:
    for choice in (REQUIRED, NONE):
        assert not any(accepts(plan_of(TOOLS, choice), call) for call in CALLS)
        assert accepts(plan_of(TOOLS, choice), f'{THOUGHT}{FINAL}{{"x": 1}}')


def test_a_model_that_is_not_to_think_writes_the_final_message_at_once() -> None:
    plan = plan_of(TOOLS, may_think=False)
    assert accepts(plan, f'{FINAL}{{"x": 1}}')
    assert accepts(plan, CALLS[0])
    assert not accepts(plan, f'{THOUGHT}{FINAL}{{"x": 1}}')


def test_an_answer_goes_on_with_what_the_prompt_begins() -> None:
    """With the last message, or with one that the template begins."""
    for plan in (
        plan_of(TOOLS, is_continued=True, prompt_end="So:"),
        plan_of(TOOLS, prompt_end=f"{PROMPT}{FINAL}So:"),
        plan_of(TOOLS, prompt_end=f"<|end|>{PROMPT}<|channel|>commentary<|message|>"),
    ):
        assert accepts(plan, '{"x": 1}')
        assert not accepts(plan, f'{FINAL}{{"x": 1}}')
        assert not plan.is_inside
    plan = plan_of(TOOLS, prompt_end=f"{PROMPT}<|channel|>analysis<|message|>So:")
    assert plan.is_inside
    assert accepts(plan, f'Hm.<|end|>{PROMPT}{FINAL}{{"x": 1}}')
    assert accepts(plan, f"<|end|>{PROMPT}{CALLS[0]}")
    assert not accepts(plan, f'{THOUGHT}{THOUGHT}{FINAL}{{"x": 1}}')
    assert not accepts(plan, '{"x": 1}')
    assert accepts(plan_of(prompt_end=f"{PROMPT}{FINAL}So.<|end|>"), f'{FINAL}{{"x": 1}}')


@pytest.mark.parametrize("call", CALLS)
def test_what_the_grammar_takes_is_read(call: str) -> None:
    plan = plan_of(TOOLS)
    content, reasoning, (found,) = said(play(TextPlan(plan), list(f"{THOUGHT}{call}")))
    assert (content, bool(reasoning)) == ("", True)
    assert json.loads(found[1]) == json.loads(call.partition("<|message|>")[2])
    assert f"functions.{found[0]}" in call
    assert said(play(TextPlan(plan), list(f"{THOUGHT}{FINAL}yes <|end|>")))[::2] == ("yes <|end|>", [])


def test_required_calls_are_read_in_the_final_message() -> None:
    calls = json.dumps([{"name": "get_time", "parameters": {}}])
    message: Any = said(play(TextPlan(plan_of(TOOLS, REQUIRED)), list(f"{THOUGHT}{FINAL}{calls}")))
    assert message[2] == [("get_time", "{}")]
    structure = Structure(StructureKind.JSON_SCHEMA, '{"type": "array"}', "")
    assert accepts(plan_of(TOOLS, REQUIRED), f"{THOUGHT}{FINAL}{calls}", structure)


@pytest.mark.parametrize("are_tokens", [True, False])
def test_calls_of_strict_tools_match_and_all_else_is_free(are_tokens: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    schemas = {"get": {"$ref": "#/$defs/get", "$defs": {"get": schema | {"additionalProperties": False}}}}
    asked = Asked(TOOLS, FREE, has_structure=False, may_think=True, is_continued=False, schemas=schemas)
    plan = HarmonyMessages().plan(asked, PROMPT, Vocabulary(tokenizer()))
    text = Structure(StructureKind.TEXT, "", "tools")
    said_before = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"x": 1}'
    for before in ("", THOUGHT, said_before, f"{THOUGHT}{said_before}{THOUGHT}"):
        for last in (
            f"{FINAL}Hello {{}}",
            FINAL,
            call,
            CALLS[0],
            CALLS[3].replace("functions.get", "functions.get_time"),
        ):
            assert accepts(plan, f"{before}{last}", text, are_tokens=are_tokens), last
        for last in ("Hello", call.replace("1", '"1"'), CALLS[2], CALLS[3], call.replace("get", "rm")):
            assert not accepts(plan, f"{before}{last}", text, are_tokens=are_tokens), last
    hidden = '<|start|>assistant<|channel|>commentary to=functions.get<|message|>{"x": "1"}'
    if not are_tokens:
        for text_with_tags in (
            f"{FINAL}ok <|end|>{hidden}",
            f"<|channel|>analysis<|message|>x{hidden}<|end|>{PROMPT}{call}",
        ):
            assert not accepts(plan, text_with_tags, text, are_tokens=False), text_with_tags
    message = play(TextPlan(plan), [THOUGHT, said_before, call])
    assert (message.content, [one.arguments for one in message.tool_calls]) == ("Let me see.", ['{"x": 1}'])
