"""Long messages travel in parts, and what is put together is what was sent."""

from __future__ import annotations

import pytest

from quire.inference.v1 import parts_pb2
from quire.scheduler.v1 import scheduler_pb2
from shared import message_parts
from shared.grpc_server import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, SERVER_OPTIONS
from shared.message_parts import PART_BYTES, PartJoiner, in_parts

# A prompt of a context of two million tokens.
LONG = scheduler_pb2.ConnectRequest(
    submit=scheduler_pb2.Submit(request_id="r", prompt_token_ids=bytes(range(256)) * (8 * 2**20 // 256))
)
SHORT = scheduler_pb2.ConnectRequest(abort=scheduler_pb2.Abort(sequence_ids=b"\1\0\0\0"))


def part(data: bytes, is_last: bool = False) -> scheduler_pb2.ConnectRequest:
    return scheduler_pb2.ConnectRequest(part=parts_pb2.MessagePart(data=data, is_last=is_last))


def test_every_hop_takes_what_grpc_takes_by_default() -> None:
    for options in (dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)):
        assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 4 * 2**20


def test_a_short_message_is_sent_as_it_is() -> None:
    assert list(in_parts(SHORT)) == [SHORT]
    assert PartJoiner[scheduler_pb2.ConnectRequest]().add(SHORT) is SHORT


def test_a_long_message_is_put_together_from_its_parts() -> None:
    joiner = PartJoiner[scheduler_pb2.ConnectRequest]()
    # And another after it on the same stream.
    for message in (LONG, SHORT, LONG):
        parts = list(in_parts(message))
        assert max(one.ByteSize() for one in parts) < PART_BYTES + 64 < MAX_MESSAGE_BYTES
        *before, last = [joiner.add(one) for one in parts]
        assert before == [None] * len(before)
        assert last == message


@pytest.mark.parametrize(
    "messages",
    [
        [part(b"x"), SHORT],
        [part(b"")],
        [part(b"\xff\xff", is_last=True)],
        [part(part(b"x").SerializeToString(), is_last=True)],
        [part(b"xxxx"), part(b"xxxx"), part(b"x")],
    ],
)
def test_parts_that_break_the_contract_are_refused(
    messages: list[scheduler_pb2.ConnectRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_parts, "MAX_JOINED_BYTES", 8)
    joiner = PartJoiner[scheduler_pb2.ConnectRequest]()
    *before, last = messages
    for message in before:
        assert joiner.add(message) is None
    with pytest.raises(ValueError, match="part"):
        joiner.add(last)
