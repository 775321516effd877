"""Messages in channels, as gpt-oss writes them: whatever pieces they come in, and whatever a request allows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.chat.harmony_count import HarmonyCount
from services.router.chat.harmony_messages import HarmonyPlan
from services.router.chat.parsers import forced
from services.router.chat.parsers.content import pass_through
from services.router.chat.parsers.harmony import MAX_HEADER_CHARS, TOKENS, HarmonyReader, Header
from services.router.chat.text_parser import TextParser, TextPlan
from services.router.dispatch.work import FinishReason
from services.router.generation.choice_delta import ChoiceDelta
from tests.unit.router.texts import FUNCTIONS, play, said

READER = HarmonyReader()
NEXT = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Hm.\n{NEXT}"
CITY = '{"city": "Kö\\"ln <|"}'
WEATHER = ("get_weather", CITY)


def plan_of(reader: HarmonyReader = READER, **fields: Any) -> TextPlan:
    return TextPlan(HarmonyPlan(reader, names=tuple(FUNCTIONS)), **fields)


TEXTS: list[tuple[str, tuple[str, str, list[tuple[str, str]]]]] = [
    (f"{THOUGHT}<|channel|>final<|message|> Yes.\n", (" Yes.\n", "Hm.\n", [])),
    ("<|channel|>final<|message|>Yes.<|return|>", ("Yes.", "", [])),
    ("<|channel|>final <|constrain|>json<|message|>{}", ("{}", "", [])),
    # Calls, with their recipient behind the channel or before it, and garbled headers.
    *(
        (f"{THOUGHT}{header}<|message|>{CITY}{end}", ("", "Hm.\n", [WEATHER]))
        for header in (
            "<|channel|>commentary to=functions.get_weather <|constrain|>json",
            "<|channel|>commentary to=functions.get_weather<|constrain|>json",
            "<|channel|>commentary to=functions.get_weather json",
            "<|channel|>commentary to=functions.get_weather",
            "<|channel|>analysis to=functions.get_weather <|constrain|>json",
            "<|channel|>commentary to=get_weather json",
            " to=functions.get_weather<|channel|>commentary json",
            " to=functions.get_weather<|channel|>commentary <|constrain|>json",
            "<|channel|>commentary to=functions.get_weather<|channel|>commentary json",
            " to=functions.get_weather json",
        )
        for end in ("", "<|call|>", "<|end|>", " \n<|call|>")
    ),
    (f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{CITY}", ("", "", [WEATHER])),
    (
        f"<|channel|>commentary to=functions.get_weather json<|message|>{CITY}<|call|><|start|>assistant<|channel|>"
        f"commentary to=functions.get_time json<|message|>{{}}<|start|>{THOUGHT}<|channel|>final<|message|>So.",
        ("So.", "Hm.\n", [WEATHER, ("get_time", "{}")]),
    ),
    (f"<|channel|>commentary to=functions.get_weather<|message|>{CITY}}}}}{NEXT}", ("", "", [WEATHER])),
    ("<|channel|>commentary to=functions.get_time json<|message|><|call|>", ("", "", [("get_time", "{}")])),
    ("<|channel|>commentary to=functions.get_time code<|message|>now() < 1<|call|>",
     ("", "", [("get_time", "now() < 1")])),
    ('<|channel|>commentary to=functions.get_weather json<|message|>{"city": "K',
     ("", "", [("get_weather", '{"city": "K')])),
    # Several messages of a kind, and a preamble.
    (
        f"{THOUGHT}{THOUGHT}<|channel|>commentary<|message|>I look.{NEXT}<|channel|>analysis<|message|>So.{NEXT}"
        f"<|channel|>commentary to=functions.get_weather json<|message|>{CITY}",
        ("I look.", "Hm.\n\nHm.\n\nSo.", [WEATHER]),
    ),
    (f"<|channel|>commentary<|message|>I look.{NEXT}<|channel|>final<|message|>{NEXT}<|channel|>final<|message|>Yes.",
     ("I look.\nYes.", "", [])),
    # Recipients that are no functions.
    (f"<|channel|>analysis to=python code<|message|>print(1){NEXT}<|channel|>final<|message|>1", ("1", "print(1)", [])),
    (f'<|channel|>commentary to=browser.search json<|message|>{{"query": 1}}{NEXT}', ("", '{"query": 1}', [])),
    ("<|channel|>final to=user<|message|>Yes.", ("Yes.", "", [])),
    ("<|channel|>commentary to=functions.a/b json<|message|>{}", ("", "{}", [])),
    # Headers that are none.
    ("Yes. <|message|> <|channel|>x", ("Yes. <|message|> <|channel|>x", "", [])),
    (" to=", (" to=", "", [])),
    ("to= be or not<|end|>", ("to= be or not", "", [])),
    (f"<|channel|>{'x' * 300}<|message|>Yes.", (f"<|channel|>{'x' * 300}<|message|>Yes.", "", [])),
    (f"<|channel|>{'x < ' * 100}{NEXT}{THOUGHT}", (f"<|channel|>{'x < ' * 100}", "Hm.\n", [])),
    ("<|message|>Yes.", ("Yes.", "", [])),
    ("<|channel|>other<|message|>Yes.", ("Yes.", "", [])),
    (f"<|channel|>analysis{NEXT}<|channel|>final<|message|>Yes.", ("Yes.", "", [])),
    ("<|channel|>fin", ("", "", [])),
    ("<|chan", ("<|chan", "", [])),
    ("<|channel|>final<|message|>Yes.<|end|>\nanalysis<|message|>Hm.", ("Yes.\nanalysis<|message|>Hm.", "", [])),
    (f"{THOUGHT}<|channel|>final<|message|>a < b <|en", ("a < b <|en", "Hm.\n", [])),
    (" \n", (" \n", "", [])),
    ("", ("", "", [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_a_row_of_messages_is_one(text: str, expected: object) -> None:
    assert said(play(plan_of(), [text])) == expected
    assert said(play(plan_of(), list(text))) == expected
    for cut in range(len(text)):
        assert said(play(plan_of(), [text[:cut], text[cut:]])) == expected


MARKS = st.sampled_from(
    (
        *TOKENS,
        "assistant",
        "analysis",
        "commentary",
        "final",
        " to=functions.get_time",
        " to=python",
        " json",
        "{",
        "}",
        "\n",
    )
)


@settings(deadline=None, max_examples=300)
@given(st.lists(MARKS | st.text(max_size=3), max_size=20).map("".join), st.data())
def test_no_text_raises_and_none_depends_on_its_pieces(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for hidden in ((), TOKENS):
        plan = plan_of(hidden_tokens=hidden)
        whole = said(play(plan, [text]))
        assert said(play(plan, pieces)) == whole
        assert not any(token in whole[0] for token in hidden if not whole[2])


def test_where_no_call_may_be_made_what_is_for_a_function_is_reasoning() -> None:
    text = f"{THOUGHT}<|channel|>commentary to=functions.get_weather json<|message|>{CITY}"
    assert said(play(plan_of(HarmonyReader(may_call=False)), list(text))) == ("", f"Hm.\n\n{CITY}", [])


def test_reasoning_that_is_not_told_apart_is_content_without_headers() -> None:
    text = f"{THOUGHT}<|channel|>final<|message|>Yes."
    plan = plan_of(HarmonyReader(tells_reasoning=False))
    assert said(play(plan, list(text))) == ("Hm.\n\nYes.", "", [])
    assert counted(plan, text) == 0


@pytest.mark.parametrize(("begins", "expected"), [("final", ("Hm. to=b", "", [])), ("analysis", ("b", "Hm. to=", []))])
def test_a_text_may_begin_in_the_middle_of_a_message(begins: str, expected: object) -> None:
    next_message = f"{NEXT}<|channel|>final<|message|>" if begins == "analysis" else ""
    text = f"Hm. to={next_message}b"
    assert said(play(plan_of(HarmonyReader(begins=Header(begins))), list(text))) == expected


def test_a_structure_is_the_final_message_to_the_end_of_the_text() -> None:
    quoting = f'{{"x": "{NEXT}<|channel|>analysis<|message|>"}}'
    plan = plan_of(HarmonyReader(structure=lambda feed, builder, _: pass_through(feed, builder)))
    assert said(play(plan, list(f"{THOUGHT}<|channel|>final<|message|>{quoting}"))) == (quoting, "Hm.\n", [])
    call = f"<|channel|>commentary to=functions.get_weather json<|message|>{CITY}"
    assert said(play(plan, list(f"{THOUGHT}{call}"))) == ("", "Hm.\n", [WEATHER])
    plan = plan_of(HarmonyReader(may_call=False, structure=forced.required))
    text = f'{THOUGHT}<|channel|>final<|message|>[{{"name": "get_weather", "parameters": {CITY}}}]'
    assert said(play(plan, list(text))) == ("", "Hm.\n", [WEATHER])


def test_special_tokens_are_not_shown() -> None:
    plan = plan_of(hidden_tokens=TOKENS)
    assert said(play(plan, list("<|channel|>final<|message|>a <|channel|>b <|constrain|>c <|x|>")))[0] == "a b c <|x|>"
    assert said(play(plan, list(f"<|channel|>{'x' * 300}<|message|>Yes.")))[0] == f"{'x' * 300}Yes."


def counted(plan: TextPlan, text: str, pieces: list[str] | None = None) -> int:
    """Each piece is a token; the text lags behind."""
    pieces = list(text) if pieces is None else pieces
    parser = TextParser(TextPlan(_with_text(plan, lambda token_id: pieces[token_id]), FUNCTIONS))
    for token_id in range(len(pieces)):
        parser.parse(ChoiceDelta(0, "".join(pieces[max(token_id - 1, 0) : token_id]), [token_id], [], None))
    parser.parse(ChoiceDelta(0, "".join(pieces[-1:]), [], [], FinishReason.STOP))
    return parser.num_reasoning_tokens


def _with_text(plan: TextPlan, token_text: Any) -> HarmonyPlan:
    assert isinstance(plan.messages, HarmonyPlan)
    return HarmonyPlan(plan.messages.reader, names=plan.messages.names, token_text=token_text)


REASONING = "<|channel|>analysis<|message|>Hm. < <|<|end|>"
PYTHON = "<|start|>assistant<|channel|>commentary to=python code<|message|>print(1)<|call|>"
CALL = f"<|start|>assistant<|channel|>commentary to=functions.get_weather json<|message|>{CITY}<|call|>"
ANSWER = "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>"


@pytest.mark.parametrize(
    ("parts", "is_reasoning"),
    [
        ((REASONING, ANSWER), (True, False)),
        ((REASONING, f"<|start|>assistant{REASONING}", PYTHON, ANSWER), (True, True, True, False)),
        ((REASONING, CALL, PYTHON), (True, False, True)),
        ((ANSWER,), (False,)),
        (("Yes.<|end|>", PYTHON), (False, True)),
        (("<|channel|>analysis<|end|>", ANSWER), (True, False)),
        (("<|channel|>analysis<|message|>Hm",), (True,)),
    ],
)
def test_tokens_of_messages_that_are_reasoning_are_counted(
    parts: tuple[str, ...], is_reasoning: tuple[bool, ...]
) -> None:
    text = "".join(parts)
    expected = [part for part, counts in zip(parts, is_reasoning, strict=True) if counts]
    assert counted(plan_of(), text) == sum(map(len, expected))
    # With tags that are tokens.
    assert counted(plan_of(), text, _tokens(text)) == sum(len(_tokens(part)) for part in expected)
    words = [piece for part in parts for piece in _tokens(part)]
    assert counted(plan_of(), text, words) == sum(len(_tokens(part)) for part in expected)


@pytest.mark.parametrize("start", ["", "<|channel|>analysis<|message|>", "<|start|>"])
@pytest.mark.parametrize("text", ["<", " ", "<|end", "a<|", "x", "<|start|>", "to="])
def test_counting_takes_time_in_proportion_to_the_text(start: str, text: str) -> None:
    pieces = [*start, *(text * 1000)]
    count = HarmonyCount(READER, (), lambda token_id: pieces[token_id])
    for token_id in range(len(pieces)):
        count.add(ChoiceDelta(0, "", [token_id], [], None))
        assert len(count._text) <= MAX_HEADER_CHARS
    count.add(ChoiceDelta(0, "", [], [], FinishReason.STOP))
    if "analysis" in start and "start" not in text:
        assert count.num_tokens == len(pieces)


def _tokens(text: str) -> list[str]:
    pieces: list[str] = []
    while text:
        token = next((token for token in TOKENS if text.startswith(token)), text[0])
        pieces.append(token)
        text = text.removeprefix(token)
    return pieces


def test_arguments_stream_as_they_come() -> None:
    parser = TextParser(plan_of())
    pieces = ["<|channel|>commentary to=functions.get_", "weather json<|mess", 'age|>{"ci', 'ty": "K', 'öln"}<|call|>']
    deltas = [parser.parse(ChoiceDelta(0, piece, [1], [], None)) for piece in pieces]
    assert [[call.arguments for call in delta.tool_calls] for delta in deltas] == [
        [],
        [],
        ['{"ci'],
        ['ty": "K'],
        ['öln"}'],
    ]
    assert json.loads("".join(call.arguments for delta in deltas for call in delta.tool_calls)) == {"city": "Köln"}
