"""Splits long messages into parts on the streams between the services, and joins them again.

By default, gRPC clients accept messages of at most 4 MiB, and a long message blocks the event loops at both ends. A
Submit with a million token ids, the plan for its prompt, or a step's log probabilities of a long prompt can be longer
than 4 MiB. A message of more than 1 MiB is therefore serialized and sent in parts of 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from quire.inference.v1 import parts_pb2

# Maximum size of a message that is sent whole, and of the data in one part.
PART_BYTES = 2**20
# Maximum size of a message that is joined from parts.
MAX_JOINED_BYTES = 64 * 2**20

# Type of the messages on a stream. Four message types can be split; each has a oneof `message` with a member `part`.
M = TypeVar("M", bound=Any)


def in_parts(message: M) -> Iterator[M]:
    """Yields the message itself if it has at most PART_BYTES, otherwise messages that each carry one part of it."""
    if message.ByteSize() <= PART_BYTES:
        yield message
        return
    data = message.SerializeToString()
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield type(message)(part=parts_pb2.MessagePart(data=data[start:end], is_last=end >= len(data)))


class PartJoiner(Generic[M]):
    """Joins the parts of the messages on one stream."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, message: M) -> M | None:
        """Returns `message` itself if it is whole, the joined message if it is the last part, None while parts are
        missing. Raises ValueError if the parts are invalid."""
        if message.WhichOneof("message") != "part":
            if self._data:
                raise ValueError("a message arrived between the parts of another message")
            return message
        part = message.part
        if not part.data or len(self._data) + len(part.data) > MAX_JOINED_BYTES:
            raise ValueError(f"a part is empty, or its message is longer than {MAX_JOINED_BYTES} bytes")
        self._data += part.data
        if not part.is_last:
            return None
        data, self._data = bytes(self._data), bytearray()
        try:
            whole: M = type(message).FromString(data)
        except DecodeError:
            raise ValueError("the joined parts do not parse as a message") from None
        if whole.WhichOneof("message") == "part":
            raise ValueError("the joined parts are a part again, not a message")
        return whole
