"""Long messages in parts, on the streams between the services.

Most gRPC clients take no message of more than 4 MiB, and a long message holds up the event loops at both ends. A Submit
with a million token ids, a plan that passes it on, or a step's log probabilities of a long prompt can be longer. Such a
message is serialized and sent in parts of 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from quire.inference.v1 import parts_pb2

# Of a message that is sent whole, and of a part's data.
PART_BYTES = 2**20
# Of a message that is put together.
MAX_JOINED_BYTES = 64 * 2**20

# One of the four messages of the streams: a oneof `message` with a member `part`.
M = TypeVar("M", bound=Any)


def in_parts(message: M) -> Iterator[M]:
    """The message itself, or the messages that bring its parts."""
    if message.ByteSize() <= PART_BYTES:
        yield message
        return
    data = message.SerializeToString()
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield type(message)(part=parts_pb2.MessagePart(data=data[start:end], is_last=end >= len(data)))


class PartJoiner(Generic[M]):
    """Puts the messages of one stream together."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, message: M) -> M | None:
        """The message that is complete with this one; None while parts are missing. Raises ValueError where the stream
        breaks the contract."""
        if message.WhichOneof("message") != "part":
            if self._data:
                raise ValueError("a message came between the parts of another")
            return message
        part = message.part
        if not part.data or len(self._data) + len(part.data) > MAX_JOINED_BYTES:
            raise ValueError(f"a part is empty, or its message longer than {MAX_JOINED_BYTES} bytes")
        self._data += part.data
        if not part.is_last:
            return None
        data, self._data = bytes(self._data), bytearray()
        try:
            whole: M = type(message).FromString(data)
        except DecodeError:
            raise ValueError("the parts of a message are no message") from None
        if whole.WhichOneof("message") == "part":
            raise ValueError("the parts of a message are a part")
        return whole
