"""A typed request's fields and numbers are counted before protobuf parses it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from quire.inference.v1 import constraints_pb2, inference_pb2, sampling_pb2
from quire.kserve.v1 import open_inference_pb2
from services.router.errors import ApiError
from services.router.rpc import wire_bounds
from services.router.rpc.wire_bounds import check_message
from shared.malformed import UndecodableRequestError

Chat, Message, Generate = inference_pb2.ChatRequest, inference_pb2.ChatMessage, inference_pb2.GenerateRequest
Detokenize = inference_pb2.DetokenizeRequest
BIASES = sampling_pb2.SamplingParams(logit_bias=[sampling_pb2.LogitBias(token_id=1, bias=1)] * 100)
WORDS = constraints_pb2.Structure(choices=constraints_pb2.Choices(texts=["a"] * 200))


def check(message: Any) -> None:
    check_message(message.SerializeToString(), type(message).DESCRIPTOR)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (Chat(messages=[Message()] * 200), "messages"),
        (Chat(messages=[Message(role="user", content="a")] * 100), "messages"),
        (Chat(messages=[Message(tool_calls=[inference_pb2.ToolCall()] * 200)]), "messages.tool_calls"),
        (Generate(options=inference_pb2.GenerationOptions(sampling=BIASES)), "options.sampling.logit_bias"),
        (Generate(options=inference_pb2.GenerationOptions(stop_strings=["a"] * 200)), "options.stop_strings"),
        (Generate(options=inference_pb2.GenerationOptions(structure=WORDS)), "options.structure.choices.texts"),
        (inference_pb2.EmbedRequest(inputs=[inference_pb2.EmbedInput(text="a")] * 200), "inputs"),
        (inference_pb2.ScoreRequest(text_2=["a"] * 200), "text_2"),
    ],
)
def test_too_many_fields_are_refused_by_name(message: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(message)
    monkeypatch.setattr(wire_bounds, "MAX_WIRE_FIELDS", 150)
    with pytest.raises(ApiError) as caught:
        check(message)
    assert caught.value.param is not None
    assert caught.value.param == path or caught.value.param.startswith(f"{path}.")


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (Generate(token_ids=inference_pb2.TokenIds(ids=[1, 300] * 26)), "token_ids.ids"),
        (inference_pb2.DetokenizeRequest(token_ids=[70_000] * 51), "token_ids"),
        (Generate(options=inference_pb2.GenerationOptions(allowed_token_ids=range(51))), "options.allowed_token_ids"),
    ],
)
def test_too_many_numbers_are_refused_by_name(message: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_bounds, "MAX_ITEMS", 52)
    check(message)
    monkeypatch.setattr(wire_bounds, "MAX_ITEMS", 50)
    with pytest.raises(ApiError) as caught:
        check(message)
    assert caught.value.param == path
    assert "at most 50" in caught.value.message


def each_with_a_tag(message: Any, *lists: tuple[int, Sequence[int]]) -> bytes:
    """The message, with lists of numbers in the form in which Envoy writes those of JSON. `lists`: field number and
    numbers of each."""
    data: bytes = message.SerializeToString()
    for field, numbers in lists:
        data += b"".join(varint(field << 3) + varint(number) for number in numbers)
    return data


def varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def test_numbers_that_each_have_a_tag_count_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [1, 300, 70_000, 2**32 - 1] * 60
    data = each_with_a_tag(Detokenize(model="m"), (2, ids))
    assert list(Detokenize.FromString(data).token_ids) == ids
    monkeypatch.setattr(wire_bounds, "MAX_WIRE_FIELDS", 5)
    monkeypatch.setattr(wire_bounds, "MAX_ITEMS", len(ids))
    check_message(data, Detokenize.DESCRIPTOR)
    for more in (data + Detokenize(token_ids=[1]).SerializeToString(), data + b"\x10\x07"):
        with pytest.raises(ApiError, match="numbers in lists"):
            check_message(more, Detokenize.DESCRIPTOR)
    # A run counts as a field, and a tag in a longer form is no run.
    for pieces in (b"\x10\x07\x18\x01" * 3, b"\x90\x00\x07" * 6):
        with pytest.raises(ApiError, match="fields in all"):
            check_message(pieces, Detokenize.DESCRIPTOR)
    with pytest.raises(UndecodableRequestError):
        check_message(data + b"\x10\x80", Detokenize.DESCRIPTOR)


def test_fixed_numbers_that_each_have_a_tag_count_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = open_inference_pb2.InferTensorContents
    data = (varint(6 << 3 | 5) + struct.pack("<f", 1.5)) * 20 + (varint(7 << 3 | 1) + struct.pack("<d", 2.5)) * 5
    message = contents.FromString(data)
    assert (list(message.fp32_contents), list(message.fp64_contents)) == ([1.5] * 20, [2.5] * 5)
    monkeypatch.setattr(wire_bounds, "MAX_WIRE_FIELDS", 2)
    monkeypatch.setattr(wire_bounds, "MAX_ITEMS", 25)
    check_message(data, contents.DESCRIPTOR)
    monkeypatch.setattr(wire_bounds, "MAX_ITEMS", 24)
    with pytest.raises(ApiError, match="numbers in lists"):
        check_message(data, contents.DESCRIPTOR)


def parses(data: bytes, message: Any) -> bool:
    try:
        message.FromString(data)
    except DecodeError:
        return False
    return True


def is_counted(data: bytes, message: Any) -> bool:
    """Whether it is then parsed."""
    try:
        check_message(data, message.DESCRIPTOR)
    except UndecodableRequestError:
        return False
    return True


def test_what_is_no_message_is_not_parsed() -> None:
    valid = Chat(model="m", messages=[Message(role="user", content="a" * 300)]).SerializeToString()
    for size in range(len(valid)):
        assert is_counted(valid[:size], Chat) == parses(valid[:size], Chat)
    for data in (b"\xff" * 100, b"\x12" * 100, b"\x12\x7f", b"\x0c", b"\x0e", b"\x92\x80\x80\x80\x10\x00"):
        assert not parses(data, Chat)
        assert not is_counted(data, Chat)


@given(
    st.lists(st.sampled_from([b"\x0a", b"\x12", b"\x1a", b"\x02", b"\x05", b"\x08", b"\x80", b"\x15", b"a"])).map(
        b"".join
    )
)
def test_all_that_the_parser_takes_is_counted(data: bytes) -> None:
    assert is_counted(data, Chat) or not parses(data, Chat)


@pytest.mark.parametrize("group", [b"\xa3\x1f\xa4\x1f", b"\x0b\x0c", b"\x0b\x08\x01\x0c"])
def test_nothing_hides_behind_a_group(group: bytes) -> None:
    hidden = group + Chat(messages=[Message()] * 200).SerializeToString()
    assert len(Chat.FromString(hidden).messages) == 200
    assert not is_counted(hidden, Chat)
    # Nor behind one inside a message.
    assert not is_counted(b"\x12" + bytes([len(group)]) + group + hidden[len(group) :], Chat)
