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

# (pytest has filters of its own, in place of the parser's.)
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

PLANS = {name: tagged(calls=form.read) for name, form in TOOL_FORMS.items()}
PLANS["required"] = tagged(calls=forced.required)
PLANS["named"] = tagged(calls=forced.named("get_weather"))

# By these forms, which have no JSON to pass on.
VALUES_ARE_TRANSLATED = {"qwen3_coder", "seed_oss", "pythonic", "llama4_pythonic", "functiongemma", "gemma4"}

WEATHER = ("get_weather", {"city": 'Kö"ln\n', "days": [1, {"b": []}]})
TIME: tuple[str, Any] = ("get_time", {})
ARGUMENTS = json.dumps(WEATHER[1], ensure_ascii=False)
DEEPSEEK_BEGIN, DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

# Of both of Gemma's forms.
GEMMA_TEXTS: list[tuple[str, str, list[tuple[str, Any]]]] = [
    (
        'Sure.\n<BEGIN>call:get_weather{city:<Q>Kö"ln\n<Q>,days:[1,{b:[]}]}<END><BEGIN>call:get_time{}<END>',
        "Sure.",
        [WEATHER, TIME],
    ),
    (
        "<BEGIN>call:get_weather{ city: <Q>a < <esc |> {b}, c<Q> days : [<Q>1<Q> , true,false] "
        "x:{<Q>y:z<Q>:-1.5e3, n:null} }",
        "",
        [("get_weather", {"city": "a < <esc |> {b}, c", "days": ["1", True, False], "x": {"y:z": -1500.0, "n": None}})],
    ),
    ("<BEGIN>call:get_weather{city:<Q>5<Q>,days:<Q>[1]<Q>}<END>", "", [("get_weather", {"city": "5", "days": [1]})]),
    ("<BEGIN>call:get_weather{city:Köln}<END> Done.", " Done.", [("get_weather", {"city": "Köln"})]),
    ("<BEGIN>call:get_time{a,b:}<END>", "", [("get_time", {"a": "", "b": ""})]),
    ("<BEGIN>get_time{}<END>", "<BEGIN>get_time{}<END>", []),
    ("<BEGIN>call:get_weather{ci", "<BEGIN>call:get_weather{ci", []),
    # What closes the arguments is missing.
    (
        "<BEGIN>call:get_weather{city:<Q>K<Q><END>Done: it is, well. {ok}",
        "Done: it is, well. {ok}",
        [("get_weather", {"city": "K"})],
    ),
    ("<BEGIN>call:get_weather{days:3<END><BEGIN>call:get_time{}<END>", "", [("get_weather", {"days": 3}), TIME]),
    ("<BEGIN>call:get_weather{days:3<BEGIN>call:get_time{}<END>", "", [("get_weather", {"days": 3}), TIME]),
    ("<BEGIN>call:get_weather{city:Köln<END> hi", " hi", [("get_weather", {"city": "Köln"})]),
    ("<BEGIN>call:get_weather{days:[1,{a:[2 <END> hi", " hi", [("get_weather", {"days": [1, {"a": [2]}]})]),
    ("<BEGIN>call:get_time{<END> hi", " hi", [TIME]),
    (
        "<BEGIN>call:get_weather{days:1}<END><BEGIN>call:get_time{<Q>",
        "<BEGIN>call:get_time{<Q>",
        [("get_weather", {"days": 1})],
    ),
    ("<BEGIN>call:get_time{a<END> hi", " hi", [("get_time", {"a": ""})]),
    ("<BEGIN>call:get_weather{city<Q>K<Q>}<END>", "", [("get_weather", {"city": "K"})]),
    ("<BEGIN>call:get_weather{days:1 <Q>city<Q>:<Q>K<Q>}", "", [("get_weather", {"days": 1, "city": "K"})]),
    ("<BEGIN>call:get_time{a<b:c<d<e>}<END>", "", [("get_time", {"a<b": "c<d<e>"})]),
    ("<BEGIN>call:get_weather{city:<Q>K<END>", "", [("get_weather", {"city": "K"})]),
    (
        "<BEGIN>call:get_weather{city:<Q>K<END>\n<BEGIN>call:get_time{}<END> hi",
        " hi",
        [("get_weather", {"city": "K"}), TIME],
    ),
    # A string may quote the token.
    ("<BEGIN>call:get_weather{city:<Q>a <END> b<Q>}<END>", "", [("get_weather", {"city": "a <END> b"})]),
    ("<BEGIN>call:get_weather{city:<Q>a <END><Q>}<END>", "", [("get_weather", {"city": "a <END>"})]),
]


GEMMA_TOKENS = {
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
}


def in_form(text: str, tokens: tuple[str, str, str]) -> str:
    begin, end, quote = tokens
    return text.replace("<BEGIN>", begin).replace("<END>", end).replace("<Q>", quote)


def calls_in_form(calls: list[tuple[str, Any]], tokens: tuple[str, str, str]) -> list[tuple[str, Any]]:
    def value_in_form(value: Any) -> Any:
        return in_form(value, tokens) if isinstance(value, str) else value

    return [(name, {key: value_in_form(value) for key, value in arguments.items()}) for name, arguments in calls]


# (form, text, content, calls)
TEXTS: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    (
        "hermes",
        f'Let me see.\n\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "get_time"}</tool_call>\n',
        "Let me see.",
        [WEATHER, TIME],
    ),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call> Done.', " Done.", [TIME]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": 1}"}', "", [("get_time", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": null}}</tool_call>', "", [TIME]),
    ("hermes", "2 <3 and <tool_calm> < <tool_call", "2 <3 and <tool_calm> < <tool_call", []),
    ("hermes", "<tool_call>what?</tool_call>", "<tool_call>what?</tool_call>", []),
    ("hermes", '<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "get_ti', '<tool_call>{"name": "get_ti', []),
    (
        "qwen3_coder",
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nKö\"ln\n\n</parameter>\n<parameter=days>\n"
        '[1, {"b": []}]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call><function=get_time></function></tool_call>",
        "Sure.",
        [WEATHER, TIME],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=get_weather><parameter=days>NaN</parameter></function></tool_call>",
        "",
        [("get_weather", {"days": "NaN"})],
    ),
    ("qwen3_coder", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    (
        "seed_oss",
        "Sure.\n\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>\nKö\"ln\n\n</parameter>\n<parameter=days>"
        '[1, {"b": []}]</parameter>\n</function>\n</seed:tool_call>\n'
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
        "Sure.",
        [WEATHER, TIME],
    ),
    (
        "seed_oss",
        "<function=get_weather>\n<parameter=city>Köln\nKalk\n<parameter=days>[True]</parameter>\n</function>",
        "",
        [("get_weather", {"city": "Köln\nKalk", "days": [True]})],
    ),
    ("seed_oss", "<seed:think> <seed:tool_call>?", "<seed:think> <seed:tool_call>?", []),
    ("llama3_json", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "", [WEATHER]),
    (
        "llama3_json",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}; '
        '{"name": "get_time", "parameters": {}}',
        "",
        [WEATHER, TIME],
    ),
    ("llama3_json", '\n<|python_tag|>{"name": "get_time"}', "", [TIME]),
    ("llama3_json", '{"name": "John", "parameters": {}} is', '{"name": "John", "parameters": {}} is', []),
    ("llama3_json", 'Look: {"name": "get_time"}', 'Look: {"name": "get_time"}', []),
    ("llama3_json", '{"name": "get_time"}; {"na', '; {"na', [TIME]),
    ("llama4_json", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "", [WEATHER]),
    (
        "llama4_json",
        f'<|python_start|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}; {{"name": "get_time"}}<|python_end|>',
        "",
        [WEATHER, TIME],
    ),
    (
        "llama4_json",
        f'<|python_start|>Let me see.<|python_end|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
        '{"name": "get_time", "parameters": {}}',
        "<|python_start|>Let me see.",
        [WEATHER, TIME],
    ),
    ("llama4_json", '<|python_start|><|python_end|>{"name": "get_time"}', "", [TIME]),
    ("llama4_json", "<|python_start|>print(1)<|python_end|>", "<|python_start|>print(1)<|python_end|>", []),
    (
        "granite",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time"}}]',
        "",
        [WEATHER, TIME],
    ),
    ("granite", 'Sure. <tool_call> [{"name": "get_time", "arguments": {}}]\n</tool_call>', "Sure.", [TIME]),
    ("granite", ' [{"name": "get_time", "arguments": {}}]', "", [TIME]),
    ("granite", '{"name": "get_time"} is how', " is how", [TIME]),
    ("granite", '[{"name": "rm", "arguments": {}}]', '[{"name": "rm", "arguments": {}}]', []),
    ("granite", "<|tool_call|>[1]<|tool_call", "<|tool_call|>[1]<|tool_call", []),
    (
        "internlm",
        "I will look.\n<|action_start|><|plugin|>\n"
        f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}<|action_end|>',
        "I will look.",
        [WEATHER],
    ),
    (
        "internlm",
        f'<|action_start|><|plugin|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}<|action_end|>\n'
        '<|action_start|> <|plugin|>\n{"name": "get_time"}\n<|action_end|>\n',
        "",
        [WEATHER, TIME],
    ),
    (
        "internlm",
        "<|action_start|><|interpreter|>1<|action_end|>",
        "<|action_start|><|interpreter|>1<|action_end|>",
        [],
    ),
    (
        "hunyuan_a13b",
        f'I will. <tool_calls>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time", '
        '"arguments": {}}]</tool_calls>\n',
        "I will.",
        [WEATHER, TIME],
    ),
    ("hunyuan_a13b", '<tool_calls>[\n    {"name": "get_time", "arguments": {}}\n]\n</tool_calls>', "", [TIME]),
    ("hunyuan_a13b", "助手：你好", "你好", []),
    ("hunyuan_a13b", "<tool_calls>none</tool_calls>", "<tool_calls>none</tool_calls>", []),
    (
        "xlam",
        f'[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time", "arguments": {{}}}}]',
        "",
        [WEATHER, TIME],
    ),
    *(
        ("xlam", f'I will.\n{begin}[{{"name": "get_weather", "arguments": {ARGUMENTS}}}]{end}', "I will.", [WEATHER])
        for begin, end in (
            ("```json\n", "\n```"),
            ("```", "```"),
            ("<tool_call>", "</tool_call>"),
            ("[TOOL_CALLS]", ""),
        )
    ),
    ("xlam", '{"name": "get_time", "arguments": {}}', "", [TIME]),
    *(("xlam", text, text, []) for text in ('```python\n[1]\n``` [1] <tool_call>[{"name": "rm"}]', "[1] [TOOL_CALLS")),
    *(
        (form, in_form(text, tokens), in_form(content, tokens), calls_in_form(calls, tokens))
        for form, tokens in GEMMA_TOKENS.items()
        for text, content, calls in GEMMA_TEXTS
    ),
    ("pythonic", "[get_weather(city='Kö\"ln\\n', days=[1, {'b': ()}]), get_time()]", "", [WEATHER, TIME]),
    ("pythonic", "<|python_start|>[get_time()]<|python_end|>", "", [TIME]),
    (
        "pythonic",
        "[get_weather(city=a.b, days=None, x=-1.5e3, y=1e999)]",
        "",
        [("get_weather", {"city": "a.b", "days": None, "x": -1500.0, "y": "1e999"})],
    ),
    ("pythonic", "[get_weather(city='x', oops]", ", oops", [("get_weather", {"city": "x"})]),
    (
        "pythonic",
        f"[get_weather(city='{'x' * 20_000}', days=[{'1, ' * 8_000}])]",
        "",
        [("get_weather", {"city": "x" * 20_000, "days": f"[{'1, ' * 8_000}]"})],
    ),
    # A literal of this length would hold up the event loop; JSON does not.
    (
        "pythonic",
        f"[get_weather(city='x', days=[{'1, ' * 1_500}], x=[{'1, ' * 8_000}1], y=[{'-1, ' * 900}])]",
        "",
        [("get_weather", {"city": "x", "days": f"[{'1, ' * 1_500}]", "x": [1] * 8_001, "y": [-1] * 900})],
    ),
    (
        "pythonic",
        "[get_weather(city=true, days=null, x=NaN)]",
        "",
        [("get_weather", {"city": True, "days": None, "x": "NaN"})],
    ),
    ("pythonic", r"[get_weather(city='\d+')]", "", [("get_weather", {"city": "\\d+"})]),
    ("pythonic", "[1, 2](see) [get_time]", "[1, 2](see) [get_time]", []),
    ("pythonic", "[rm(path='/')]", "[rm(path='/')]", []),
    (
        "mistral",
        f'I will.[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time", '
        '"arguments": {}}]',
        "I will.",
        [WEATHER, TIME],
    ),
    ("mistral", f"[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]get_time{{}}", "", [WEATHER, TIME]),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}", "", [WEATHER]),
    ("mistral", "[1] and [TOOL_CALLS] nothing", "[1] and [TOOL_CALLS] nothing", []),
    (
        "deepseek_v3",
        f"Wait.{DEEPSEEK_BEGIN}<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGUMENTS}\n```"
        f"<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{{}}\n```<｜tool▁call▁end｜>"
        f"{DEEPSEEK_END}",
        "Wait.",
        [WEATHER, TIME],
    ),
    (
        "deepseek_v31",
        f"{DEEPSEEK_BEGIN}<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>{DEEPSEEK_END}",
        "",
        [WEATHER, TIME],
    ),
    ("deepseek_v31", f"{DEEPSEEK_BEGIN}none", f"{DEEPSEEK_BEGIN}none", []),
    ("plain", f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}', "", [WEATHER]),
    ("plain", f'```json\n[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time"}}]\n```\n', "",
     [WEATHER, TIME]),
    ("plain", '[{"name": "get_time"}, {"name": "rm"}]', ', {"name": "rm"}]', [TIME]),
    ("plain", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
    ("plain", " Hello ", " Hello ", []),
    ("required", f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}}, {{"name": "get_time", "parameters": {{}}}}]',
     "", [WEATHER, TIME]),
    ("named", f" {ARGUMENTS} ", "", [WEATHER]),
    ("named", "", "", []),
    ("required", '[  {"name": "get_wea', "", []),
    ("required", f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}} ,  {{"name":', "", [WEATHER]),
    ("required", '[{"name": "get_time", "parameters": {}', "", [TIME]),
]  # fmt: skip


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
