"""Calls are read in every form, whatever pieces the text comes in, and what is no call stays content."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.chat.forms import TOOL_FORMS
from services.router.chat.message import EndReason
from services.router.chat.parsers import forced
from services.router.chat.text_parser import TextParser
from services.router.dispatch.work import FinishReason
from services.router.generation.choice_delta import ChoiceDelta
from tests.unit.router.texts import FUNCTIONS, calls_of, play, said, sizes_taken, tagged
from tests.unit.router.tool_texts import DEEPSEEK_BEGIN, GEMMA_TOKENS, TEXTS, TIME, WEATHER, in_form

# (pytest has filters of its own, in place of the parser's.)
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

PLANS = {name: tagged(calls=form.read) for name, form in TOOL_FORMS.items()}
PLANS["required"] = tagged(calls=forced.required)
PLANS["named"] = tagged(calls=forced.named("get_weather"))

# By these forms, which have no JSON to pass on.
VALUES_ARE_TRANSLATED = {"qwen3_coder", "seed_oss", "pythonic", "llama4_pythonic", "functiongemma", "gemma4"}


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS)
def test_a_text_is_told_apart(form: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    message = play(PLANS[form], [text])
    assert message.content == content
    assert calls_of(message) == calls
    assert message.end_reason is (EndReason.TOOL_CALLS if calls else EndReason.STOP)


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS)
def test_character_by_character_it_is_the_same(
    form: str, text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    assert said(play(PLANS[form], list(text))) == said(play(PLANS[form], [text]))


# Pieces of every form, so that random texts come close to calls.
MARKS = (
    *("<start_function_call>", "call:get_time{", "<escape>", "a:", "<|tool_call>", '<|"|>', "[", "<tool_call|>"),
    *("<|tool_call|>", "<|action_start|>", "<|plugin|>", "<|action_end|>", "<tool_calls>", "</tool_calls>", "```"),
    *("<|python_end|>", "助手："),
    *("<seed:tool_call>", "</seed:tool_call>", "<parameter=city>", "<function=get_time>"),
    *("<tool_call>", "</tool_call>", "<function=", "get_time", ">", "</function>", "<parameter=", "</parameter>"),
    *("<|python_tag|>", "<|python_start|>", "[TOOL_CALLS]", "[ARGS]", "```json", '{"name": "get_time"', "}", "]"),
    *(', "arguments": ', "{", '"', "\\", "[", "[get_time(", ")", "=", ",", ";", "\n", " ", "a", "1", "'", "ö👋"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
RANDOM_TEXTS = st.lists(st.one_of(st.sampled_from(MARKS), st.text(max_size=3)), max_size=25).map("".join)


@pytest.mark.parametrize("form", PLANS)
@settings(deadline=None, max_examples=60)
@given(text=RANDOM_TEXTS, data=st.data())
def test_no_text_raises_and_none_depends_on_its_pieces(form: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = play(PLANS[form], [text])
    assert said(play(PLANS[form], pieces)) == said(whole)
    if not whole.tool_calls:
        expected = text.removeprefix("助手：") if form == "hunyuan_a13b" else text
        assert whole.content == ("" if form in ("named", "required") else expected)


@settings(deadline=None, max_examples=100)
@given(
    arguments=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_arguments_arrive_character_by_character_as_they_were_written(arguments: dict[str, Any]) -> None:
    written = json.dumps(arguments, ensure_ascii=True)
    for name in TOOL_FORMS.keys() - VALUES_ARE_TRANSLATED:
        text = TOOL_FORMS[name].write([("get_weather", written), ("get_time", "{}")])
        assert said(play(PLANS[name], list(text)))[2] == [("get_weather", written), ("get_time", "{}")]


@pytest.mark.parametrize("name", TOOL_FORMS)
def test_what_a_form_writes_it_reads(name: str) -> None:
    form = TOOL_FORMS[name]
    for calls in ([WEATHER], [WEATHER, TIME]):
        text = form.write([(function, json.dumps(arguments)) for function, arguments in calls])
        assert calls_of(play(PLANS[name], [text])) == calls


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS)
def test_no_delta_of_a_call_is_empty(form: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    parser = TextParser(dataclasses.replace(PLANS[form], functions=FUNCTIONS))
    deltas = [parser.parse(ChoiceDelta(0, character, [1], [], None)) for character in text]
    assert all(call.name or call.arguments for delta in deltas for call in delta.tool_calls)


def test_the_name_comes_first_and_arguments_as_they_come() -> None:
    parser = TextParser(PLANS["hermes"])
    pieces = ["Hm. <tool", '_call>{"name": "get_weather"', ', "arguments": {"ci', 'ty": "Kö', 'ln"}', "}</tool_call>"]
    deltas = [parser.parse(ChoiceDelta(0, piece, [1], [], None)) for piece in pieces]
    assert [delta.content for delta in deltas] == ["Hm.", "", "", "", "", ""]
    (begin,), (middle,), (end,) = (delta.tool_calls for delta in deltas[2:5])
    assert (begin.index, begin.name, begin.arguments) == (0, "get_weather", '{"ci')
    assert begin.id.startswith("call_")
    assert (middle.index, middle.id, middle.name, middle.arguments) == (0, "", "", 'ty": "Kö')
    assert end.arguments == 'ln"}'
    assert not deltas[5].tool_calls


def test_a_message_that_is_cut_ends_by_length_whatever_it_calls() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "K'
    message = play(PLANS["hermes"], [text], FinishReason.LENGTH)
    assert message.end_reason is EndReason.LENGTH
    assert said(message)[2] == [("get_weather", '{"city": "K')]


def test_without_parallel_calls_there_is_one() -> None:
    text = TOOL_FORMS["hermes"].write([("get_time", "{}"), ("get_weather", '{"city": "x"}')])
    message = play(tagged(calls=TOOL_FORMS["hermes"].read, max_calls=1), list(text))
    assert said(message)[2] == [("get_time", "{}")]


def test_special_tokens_are_shown_to_the_parser_alone() -> None:
    plan = tagged(calls=TOOL_FORMS["llama3_json"].read, hidden_tokens=("<|python_tag|>",))
    assert said(play(plan, list("<|python_tag|>print(1)")))[0] == "print(1)"
    plan = tagged(calls=TOOL_FORMS["mistral"].read, hidden_tokens=TOOL_FORMS["mistral"].tokens)
    assert said(play(plan, list("a [ARGS]b[TOOL_CALLS]!")))[0] == "a b!"


def test_tokens_around_content_are_no_part_of_it() -> None:
    plan = tagged(calls=TOOL_FORMS["llama4_json"].read, hidden_tokens=TOOL_FORMS["llama4_json"].tokens)
    text = '<|python_start|>Let me see.<|python_end|>{"name": "get_time", "parameters": {}}'
    assert said(play(plan, list(text))) == ("Let me see.", "", [("get_time", "{}")])


def test_ids_are_such_as_the_model_s_template_takes() -> None:
    ids = {TOOL_FORMS["mistral"].new_id() for _ in range(8)}
    assert len(ids) == 8
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


@pytest.mark.parametrize("form", [*PLANS])
def test_reading_takes_time_in_proportion_to_the_text(form: str) -> None:
    """What waits to be read stays short, so that no piece makes the parser read the text again."""
    parser = TextParser(PLANS[form])
    long = json.dumps({"city": "x" * 20_000, "days": list(range(2_000))})
    written = TOOL_FORMS.get(form, TOOL_FORMS["plain"]).write([("get_weather", long)])
    text = {"named": long, "required": f'[{{"name": "get_weather", "parameters": {long}}}]'}.get(form, written)
    longest = 0
    for start in range(0, len(text), 7):
        parser.parse(ChoiceDelta(0, text[start : start + 7], [1], [], None))
        longest = max(longest, len(parser._feed._text) - parser._feed._at)
    assert longest < 64


@pytest.mark.parametrize("form", [*PLANS])
def test_reading_copies_nothing_with_each_piece(form: str) -> None:
    long = json.dumps({"city": "x" * 10_000 + "\\n" * 5_000, "days": list(range(1_000))})
    written = TOOL_FORMS.get(form, TOOL_FORMS["plain"]).write([("get_weather", long)])
    text = {"named": long, "required": f'[{{"name": "get_weather", "parameters": {long}}}]'}.get(form, written)
    text = f"{' ' * 10_000}{text}{' ' * 10_000}x{' ' * 10_000}"
    sizes = sizes_taken(
        dataclasses.replace(PLANS[form], functions=FUNCTIONS), [text[at : at + 7] for at in range(0, len(text), 7)]
    )
    # Some values are translated once they are complete, and lists that grow are copied now and then.
    assert sum(size > 8_000 for size in sizes) < len(sizes) / 50


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": '),
        ("llama3_json", '{"name": "get_weather", "parameters":'),
        ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": '),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n"),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<para"),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=ci"),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n</func"),
        ("seed_oss", "<seed:tool_call>\n<function=get_weather>\n<parameter=ci"),
        ("deepseek_v31", f"{DEEPSEEK_BEGIN}<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"),
        ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": '),
        ("internlm", '<|action_start|><|plugin|>{"name": "get_weather", "arguments":'),
        ("hunyuan_a13b", '<tool_calls>[{"name": "get_weather", "arguments": '),
        ("xlam", '[{"name": "get_weather", "arguments": '),
        ("functiongemma", "<start_function_call>call:get_weather{"),
        ("gemma4", "<|tool_call>call:get_weather{ci"),
        ("openai", "<|channel|>commentary to=functions.get_weather json<|message|>"),
        ("openai", " to=functions.get_weather<|channel|>comm"),
        ("pythonic", "[get_weather("),
        ("required", '[{"name": "get_weather", "parameters": '),
        ("named", ""),
        ("named", "\n"),
    ],
)
def test_a_call_that_is_cut_before_its_arguments_is_none(form: str, text: str) -> None:
    for pieces in ([text], list(text)):
        message = play(PLANS[form], pieces, FinishReason.LENGTH)
        assert message.tool_calls == []
        assert message.end_reason is EndReason.LENGTH


@pytest.mark.parametrize("form", GEMMA_TOKENS)
def test_a_call_that_is_cut_has_no_part_of_a_token(form: str) -> None:
    text = in_form("<BEGIN>call:get_weather{city:<Q>Köln<Q>,days:3,<Q>n<Q>:1<END>", GEMMA_TOKENS[form])
    begin = text.index("city:") + len("city:")
    for length in range(begin, len(text)):
        for pieces in ([text[:length]], list(text[:length])):
            message = play(PLANS[form], pieces, FinishReason.LENGTH)
            assert message.content == ""
            ((_, arguments),) = said(message)[2]
            assert "<" not in arguments
