"""A typed request's fields and numbers are counted before protobuf parses it."""

from __future__ import annotations

from typing import Any

import pytest

from quire.inference.v1 import constraints_pb2, inference_pb2, sampling_pb2
from services.router import wire_bounds
from services.router.errors import ApiError
from services.router.wire_bounds import check_message

Chat, Message, Generate = inference_pb2.ChatRequest, inference_pb2.ChatMessage, inference_pb2.GenerateRequest
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


def test_what_is_no_message_is_left_to_the_parser() -> None:
    valid = Chat(model="m", messages=[Message(role="user", content="a" * 300)]).SerializeToString()
    for size in range(len(valid)):
        check_message(valid[:size], Chat.DESCRIPTOR)
    for data in (b"\xff" * 100, b"\x12" * 100, b"\x12\x7f", b"\x0b\x0c", bytes(100)):
        check_message(data, Chat.DESCRIPTOR)
