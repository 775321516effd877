"""A message's deltas become segments, each opened, filled and closed once, one after the other."""

from __future__ import annotations

from services.router.chat.message import EndReason, Message, MessageDelta, ToolCallDelta
from services.router.http.segments import Segment, SegmentChange, Segmenter, SegmentKind, segments_of
from services.router.template.arguments import parsed_arguments

THINK_SAY_CALL = [
    MessageDelta(0, reasoning="I should "),
    MessageDelta(0, reasoning="add.", content="Let "),
    MessageDelta(0, content="me see."),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, id="call_a", name="add")]),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, '{"a": 2'), ToolCallDelta(0, "}")]),
    MessageDelta(0, tool_calls=[ToolCallDelta(1, '{"b": 3}', "call_b", "add")], end_reason=EndReason.TOOL_CALLS),
]
TEXTS = [
    (SegmentKind.REASONING, "", "I should add."),
    (SegmentKind.CONTENT, "", "Let me see."),
    (SegmentKind.TOOL_CALL, "call_a", '{"a": 2}'),
    (SegmentKind.TOOL_CALL, "call_b", '{"b": 3}'),
]


def test_segments_follow_one_another() -> None:
    segmenter = Segmenter()
    events = [event for delta in THINK_SAY_CALL for event in segmenter.push(delta)]
    events += segmenter.close()
    open_segments: list[Segment] = []
    grown = dict.fromkeys(range(4), "")
    for change, segment, text in events:
        match change:
            case SegmentChange.OPENED:
                assert not open_segments
                open_segments.append(segment)
            case SegmentChange.GREW:
                assert open_segments == [segment]
                grown[segment.index] += text
            case SegmentChange.CLOSED:
                assert open_segments.pop() is segment
    assert not open_segments
    assert [(s.kind, s.call_id, s.text) for s in segmenter.segments] == TEXTS
    assert list(grown.values()) == [text for _, _, text in TEXTS]
    assert [segment.index for segment in segmenter.segments] == [0, 1, 2, 3]


def test_a_whole_message_has_the_same_segments() -> None:
    message = Message()
    for delta in THINK_SAY_CALL:
        message.add(delta)
    assert [(s.kind, s.call_id, s.text) for s in segments_of(message)] == TEXTS


def test_a_message_of_calls_alone_has_no_content() -> None:
    message = Message()
    message.add(MessageDelta(0, tool_calls=[ToolCallDelta(0, "{}", "call_a", "add")]))
    assert [segment.kind for segment in segments_of(message)] == [SegmentKind.TOOL_CALL]


def test_an_empty_message_has_empty_content() -> None:
    segmenter = Segmenter()
    assert [change for change, _, _ in segmenter.close()] == [SegmentChange.OPENED, SegmentChange.CLOSED]
    assert [(s.kind, s.text) for s in segments_of(Message())] == [(SegmentKind.CONTENT, "")]


def test_content_after_a_call_is_a_segment_of_its_own() -> None:
    segmenter = Segmenter()
    for delta in (MessageDelta(0, "a"), MessageDelta(0, tool_calls=[ToolCallDelta(0, "{}", "c", "f")])):
        list(segmenter.push(delta))
    list(segmenter.push(MessageDelta(0, "b")))
    assert [segment.text for segment in segmenter.segments] == ["a", "{}", "b"]


def test_arguments_that_were_cut_short_are_what_can_be_told() -> None:
    assert parsed_arguments('{"a": 2, "b": [1, 2]}') == {"a": 2, "b": [1, 2]}
    assert parsed_arguments('{"a": 2, "b": [1') == {"a": 2, "b": [1]}
    for nothing in ("", "[1]", "null", "no JSON", '{"a": NaN}', "[" * 100_000):
        assert parsed_arguments(nothing) == {}
