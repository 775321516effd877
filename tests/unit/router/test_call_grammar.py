"""Answers that are calls in a model's own form or another structure: the grammar, and how they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.chat.answer_grammar import AnswerForm, Tags
from services.router.chat.call_grammar import calls_grammar
from services.router.chat.forms import THINK, TOOL_FORMS
from services.router.chat.parsers.alternatives import calls_or_content
from services.router.chat.parsers.form import Marked
from services.router.chat.tools import Tool
from services.router.grammar.structure import Structure, StructureKind
from tests.unit.router.test_answer_grammar import X, accepts, ids_of, tags_of
from tests.unit.router.texts import calls_of, play, tagged

SHAPED = [name for name, form in TOOL_FORMS.items() if form.shape is not None and form.shape.fits_structures]
TOOLS = (Tool("get_weather"), Tool("get_time"), Tool("get"))
WEATHER: tuple[str, Any] = ("get_weather", {"city": 'Kö"ln\n', "days": [1, {"b": []}]})
TIME: tuple[str, Any] = ("get_time", {})
ANY_OBJECT = Structure(StructureKind.JSON_OBJECT, "", "")
REGEX = Structure(StructureKind.REGEX, r"[{<]+x|\[1\]|yes", "")


def written(name: str, *calls: tuple[str, Any]) -> str:
    texts = [(function, json.dumps(arguments, ensure_ascii=False)) for function, arguments in calls]
    return TOOL_FORMS[name].write(texts)


def form_of(name: str, *, several: bool = True) -> AnswerForm:
    """With tags that are text, as these forms' are none of the tokenizer's; reasoning may come before."""
    calls = calls_grammar(TOOLS, TOOL_FORMS[name], Tags({}), several=several)
    return AnswerForm(tags_of(THINK, are_tokens=True), THINK, calls=calls)


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("structure", [X, ANY_OBJECT, REGEX], ids=["schema", "object", "regex"])
def test_an_answer_is_calls_or_the_structure(name: str, structure: Structure) -> None:
    form = form_of(name)
    good = {X: '{"x": 1}', ANY_OBJECT: '{"y": [null]}', REGEX: "yes"}[structure]
    for text in (written(name, WEATHER), written(name, WEATHER, TIME, WEATHER), good):
        assert accepts(form, structure, ids_of(text)), text
        assert accepts(form, structure, ids_of(f"<think>Hm.</think>\n{text}")), text
    for text in (f"Well. {written(name, TIME)}", f"{good}{written(name, TIME)}", "Well.", written(name, WEATHER)[:-3]):
        assert not accepts(form, structure, ids_of(text)), text


@pytest.mark.parametrize("name", SHAPED)
def test_only_tools_are_called_and_one_alone_where_one_is_wanted(name: str) -> None:
    assert not accepts(form_of(name), X, ids_of(written(name, ("rm", {}))))
    assert not accepts(form_of(name, several=False), X, ids_of(written(name, TIME, TIME)))
    assert accepts(form_of(name, several=False), X, ids_of(written(name, TIME)))


def test_tags_that_are_tokens_are_taken_as_such() -> None:
    hermes = TOOL_FORMS["hermes"]
    # (Any token will do.)
    tags = Tags({"<tool_call>": ids_of("<think>")[0], "</tool_call>": ids_of("</think>")[0]})
    form = AnswerForm(tags, calls=calls_grammar(TOOLS, hermes, tags, several=True))
    text = written("hermes", WEATHER, TIME)
    assert accepts(form, X, ids_of(text))
    assert accepts(form, X, ids_of(text.replace("tool_call", "think")))


def test_gemma_s_strings_may_hold_what_their_tokens_begin_with() -> None:
    gemma = TOOL_FORMS["gemma4"]
    tags = Tags({'<|"|>': ids_of("</think>")[0]})
    text = written("gemma4", ("get_weather", {"city": "a < b <| c", "x y": ["", {"y z": -1.5}]}), TIME)
    for known in (tags, Tags({})):
        assert accepts(AnswerForm(known, calls=calls_grammar(TOOLS, gemma, known, several=True)), X, ids_of(text))
    form = AnswerForm(tags, calls=calls_grammar(TOOLS, gemma, tags, several=True))
    assert accepts(form, X, ids_of(text.replace('<|"|>', "</think>")))


@pytest.mark.parametrize("name", SHAPED)
def test_what_begins_as_calls_is_read_as_such_and_all_else_is_content(name: str) -> None:
    plan = tagged(calls=calls_or_content(TOOL_FORMS[name]))
    for calls in ([WEATHER], [WEATHER, TIME]):
        message = play(plan, list(written(name, *calls)))
        assert (message.content, calls_of(message)) == ("", calls)
    quoting = json.dumps({"x": written("hermes", TIME) + written("llama3_json", TIME) + "<|python_tag|>{}"})
    for text in (quoting, '{"x": 1}', "yes", "", "[1]"):
        message = play(plan, list(text))
        assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize("name", [name for name in SHAPED if isinstance(TOOL_FORMS[name].shape, Marked)])
def test_of_calls_that_were_cut_nothing_is_content(name: str) -> None:
    text = written(name, WEATHER, TIME)
    plan = tagged(calls=calls_or_content(TOOL_FORMS[name]))
    first = len(text) - len(text.removeprefix(TOOL_FORMS[name].shape.marker))  # type: ignore[union-attr]
    assert first > 0
    assert {play(plan, [text[:length]]).content for length in range(first, len(text))} == {""}
