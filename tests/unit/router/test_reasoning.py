"""Reasoning is told from the answer, by tags in the text or in the prompt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.chat.forms import REASONING_FORMS, THINK, THINK_AND_ANSWER, TOOL_FORMS
from services.router.chat.message import EndReason
from services.router.chat.parsers.form import Read
from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.chat.text_parser import TextParser, TextPlan
from services.router.dispatch.work import FinishReason
from services.router.generation.choice_delta import ChoiceDelta
from tests.unit.router.texts import play, said, sizes_taken, tagged

GRANITE = REASONING_FORMS["granite"]
TAGGED = tagged(reasoning=THINK)
OPENED = tagged(reasoning=THINK, is_inside=True)


@pytest.mark.parametrize(
    ("plan", "text", "content", "reasoning"),
    [
        (TAGGED, "<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", "Yes.\n", "Hm.\n\nSo."),
        (TAGGED, "\n<think>Hm.</think>Yes.", "Yes.", "Hm."),
        (TAGGED, "Yes.</think>", "Yes.</think>", ""),
        (TAGGED, "\n<thin ice", "\n<thin ice", ""),
        (TAGGED, "<think>a < b </thing", "", "a < b </thing"),
        (OPENED, "\nHm.\n</think>Yes <think>", "Yes <think>", "Hm."),
        (OPENED, "<think>Hm.</think>", "", "Hm."),
        (OPENED, "  Hm.\n", "", "  Hm.\n"),
    ],
)
def test_reasoning_and_answer(plan: TextPlan, text: str, content: str, reasoning: str) -> None:
    for pieces in ([text], list(text)):
        assert said(play(plan, pieces)) == (content, reasoning, [])


@settings(deadline=None, max_examples=100)
@given(
    text=st.lists(
        st.one_of(
            st.sampled_from(("<think>", "</think>", "<answer>", "</answer>", "\n", "<", " ", "Here", *GRANITE.tokens)),
            st.text(max_size=3),
        )
    ).map("".join),
    form=st.sampled_from((THINK, REASONING_FORMS["hunyuan_a13b"], GRANITE)),
    is_inside=st.booleans(),
)
def test_no_text_depends_on_its_pieces(text: str, form: ReasoningForm, is_inside: bool) -> None:
    plan = tagged(reasoning=form, calls=TOOL_FORMS["hermes"].read, is_inside=is_inside)
    assert said(play(plan, list(text))) == said(play(plan, [text]))


def test_calls_come_after_reasoning_and_none_within() -> None:
    call = TOOL_FORMS["hermes"].write([("get_time", "{}")])
    plan = tagged(reasoning=THINK, calls=TOOL_FORMS["hermes"].read)
    assert said(play(plan, list(f"\n\n{call}"))) == ("", "", [("get_time", "{}")])
    message = play(plan, list(f"<think>{call}</think>\n{call}"))
    assert said(message) == ("", call, [("get_time", "{}")])
    assert message.end_reason is EndReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("prompt", "is_open"), [("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("user: <think> it is", None)]
)
def test_what_a_template_writes_last_opens_or_closes_reasoning(prompt: str, is_open: bool | None) -> None:
    assert THINK.is_open(prompt) is is_open
    assert REASONING_FORMS["deepseek_r1"].starts_inside


HUNYUAN_CALL = TOOL_FORMS["hunyuan_a13b"].write([("get_time", "{}")])


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>\nYes.\n</answer>", "Yes."),
        ("<answer>Yes.</answer>\n", "Yes."),
        ("<answer>\nA </answer> b <answer> </ans\n", "A </answer> b <answer> </ans\n"),
        ("<answer>\n a < b\n\nc </answer", " a < b\n\nc </answer"),
        ("<answer>\n", ""),
        ("<answer>\n</answer>", ""),
        ("Yes.</answer>", "Yes.</answer>"),
        ("<answer", "<answer"),
    ],
)
def test_tags_around_an_answer_are_no_part_of_it(text: str, content: str) -> None:
    form = REASONING_FORMS["hunyuan_a13b"]
    for plan in (tagged(reasoning=form), tagged(reasoning=form, calls=TOOL_FORMS["hunyuan_a13b"].read)):
        for whole in (f"<think>\nHm.\n</think>\n{text}", f"<think>Hm.</think>{text}"):
            assert said(play(plan, [whole])) == (content, "Hm.", [])
            assert said(play(plan, list(whole))) == (content, "Hm.", [])


@pytest.mark.parametrize("calls", [None, TOOL_FORMS["hermes"].read])
def test_space_within_an_answer_is_not_copied_with_each_piece(calls: Read | None) -> None:
    plan = tagged(reasoning=THINK_AND_ANSWER, calls=calls)
    pieces = ["<think>Hm.</think><answer>", "a", *["\n"] * 10_000, "</answer>", *["\n"] * 10_000]
    # Lists that grow are copied now and then.
    assert sum(size > 8_000 for size in sizes_taken(plan, pieces)) < 100
    assert said(play(plan, pieces)) == ("a", "Hm.", [])
    assert said(play(plan, [*pieces, "b"])) == (f"a{''.join(pieces[2:])}b", "Hm.", [])


def test_calls_stand_between_the_answer_s_tags() -> None:
    plan = tagged(reasoning=REASONING_FORMS["hunyuan_a13b"], calls=TOOL_FORMS["hunyuan_a13b"].read)
    for before in ("", "I look.\n"):
        text = f"<think>\nHm.\n</think>\n<answer>\n{before}{HUNYUAN_CALL}\n</answer>"
        for pieces in ([text], list(text)):
            assert said(play(plan, pieces)) == (before.strip(), "Hm.", [("get_time", "{}")])


def test_the_name_of_gemma_s_channel_is_no_part_of_its_reasoning() -> None:
    form = REASONING_FORMS["gemma4"]
    assert form.is_open("<|turn>model\n<|channel>thought\n<channel|>") is False
    plan = tagged(reasoning=form, calls=TOOL_FORMS["gemma4"].read)
    for text, expected in (
        ("<|channel>thought\nHm.<channel|>Yes.", ("Yes.", "Hm.", [])),
        ("<|channel>thoughtful<channel|>", ("", "thoughtful", [])),
        ("<|channel>thought\n<channel|><|tool_call>call:get_time{}<tool_call|>", ("", "", [("get_time", "{}")])),
    ):
        for pieces in ([text], list(text)):
            assert said(play(plan, pieces)) == expected


def test_a_remark_on_the_budget_leaves_seed_oss_reasoning_open() -> None:
    form = REASONING_FORMS["seed_oss"]
    assert form.is_open("<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>\n") is True
    assert form.is_open("<seed:bos>assistant\n") is None
    plan = tagged(reasoning=form, calls=TOOL_FORMS["seed_oss"].read)
    call = "\n<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>"
    for text in ("<seed:think>\nHm.\n</seed:think>", "<seed:think>Hm.</seed:think>"):
        assert said(play(plan, list(f"{text}{call}"))) == ("", "Hm.", [("get_time", "{}")])


@pytest.mark.parametrize("begin", ["Here is my thought process:", "Here's my thought process:"])
@pytest.mark.parametrize("end", ["Here is my response:", "Here's my response:"])
def test_granite_marks_reasoning_with_sentences(begin: str, end: str) -> None:
    plan = tagged(GRANITE, TOOL_FORMS["granite"].read)
    for text, expected in (
        (f"{begin}\n\nHe is. Here's my\n\n{end}\n\nYes. {begin}", (f"Yes. {begin}", "He is. Here's my", [])),
        (f"\n{begin} Hm. {end} Yes.", (" Yes.", " Hm. ", [])),
        (f"{begin} Hm. {end[:-1]}", ("", f" Hm. {end[:-1]}", [])),
        (f"Well. {begin} Hm. {end}", (f"Well. {begin} Hm. {end}", "", [])),
        (begin[:-1], (begin[:-1], "", [])),
        (f'{begin}Hm.{end}<|tool_call|>[{{"name": "get_time", "arguments": {{}}}}]', ("", "Hm.", [("get_time", "{}")])),
    ):
        assert said(play(plan, [text])) == expected
        assert said(play(plan, list(text))) == expected
        for cut in range(len(text)):
            assert said(play(plan, [text[:cut], text[cut:]])) == expected
    assert GRANITE.is_open(f"x{begin}\n") is True
    assert GRANITE.is_open(f"x{end}") is False
    text = f"{begin} Hm. {end}"
    counting = tagged(GRANITE, token_text=chr)
    assert counted(counting, *((char, [ord(char)]) for char in f"{text} Yes.")) == len(text)


def test_the_tags_around_granite_s_response_are_no_part_of_it() -> None:
    form = REASONING_FORMS["granite_3_3"]
    for text in ("<think>Hm.</think>\n<response>\nYes.</response>", "<think>\nHm.\n</think>\n\nYes."):
        assert said(play(tagged(form), list(text))) == ("Yes.", "Hm.", [])


def counted(plan: TextPlan, *deltas: tuple[str, list[int]]) -> int:
    parser = TextParser(plan)
    for text, token_ids in deltas:
        parser.parse(ChoiceDelta(0, text, token_ids, [], None))
    parser.parse(ChoiceDelta(0, "", [], [], FinishReason.STOP))
    return parser.num_reasoning_tokens


def test_reasoning_tokens_are_counted_up_to_the_end_tag() -> None:
    plan = tagged(reasoning=THINK, end_token_id=9)
    # The text lags behind: the end tag's token came with a delta that shows nothing of it.
    assert counted(plan, ("<think>", [8]), ("a", [1, 2, 9, 3]), ("b</think>c", [4]), ("d", [5, 6])) == 4
    assert counted(plan, ("Yes", [1, 9]), (".", [2])) == 0
    assert counted(TAGGED, ("<think>", [8]), ("a", [1, 2]), ("</think>b", [3]), ("c", [4])) == 4
    assert counted(OPENED, ("a", [1, 2]), ("b", [3])) == 3


@given(
    cuts=st.sets(st.integers(1, 40)), before=st.sampled_from(["", "\n"]), after=st.sampled_from(["", "\n\nYes.", "Y"])
)
def test_where_the_end_tag_is_several_tokens_the_count_does_not_depend_on_the_deltas(
    cuts: set[int], before: str, after: str
) -> None:
    """Each character is a token."""
    reasoning = f"{before}<think>Hm.</think>"
    text = reasoning + after
    ends = sorted({cut for cut in cuts if cut < len(text)} | {len(text)})
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    plan = tagged(reasoning=THINK, token_text=chr)
    assert counted(plan, *((piece, list(map(ord, piece))) for piece in pieces)) == len(reasoning)
