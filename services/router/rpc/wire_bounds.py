"""Reads the requests of the typed gRPC APIs. Parses large requests in a thread, and refuses those with too many fields.

Without this module, gRPC would parse every request on the event loop. The number of fields is limited, because
protobuf's parser holds Python's interpreter lock even in a thread, and because an empty message in a list takes two
bytes on the wire but a hundred in memory. `BoundedServer`, which stands between the generated add_…_to_server functions
and the server, passes large requests on as bytes. `Guarded` (guard.py) authenticates the caller and then has the bytes
parsed. Requests above LARGE_BODY_BYTES wait in the same queue as large HTTP bodies (large_bodies.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from services.router.errors import ApiError, invalid
from services.router.limits import MAX_ITEMS
from services.router.rpc.guard import UnreadRequest
from services.router.text import TextThreads
from shared.malformed import UndecodableRequestError

# Maximum number of fields in a request, summed over all of its messages. Up to 65,536 numbers of one list that follow
# one another count as one field, also if each has a tag of its own.
MAX_WIRE_FIELDS = 131_072
# Requests of up to this size are parsed on the event loop, and their fields are not counted: a field takes at least two
# bytes, so they have at most 8,192.
SMALL_BYTES = 16 * 1024

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
# Patterns for a number on the wire.
_NUMBERS = {_VARINT: rb"[\x80-\xff]{0,9}[\x00-\x7f]", _FIXED64: b".{8}", _FIXED32: b".{4}"}
_MAX_TAG = 2**32 - 1
_CONTINUED_BYTES = bytes(range(128, 256))
_FIXED_SIZES = {
    FieldDescriptor.CPPTYPE_FLOAT: 4,
    FieldDescriptor.CPPTYPE_DOUBLE: 8,
}


class BoundedServer:
    """Accepts method handlers like a grpc.aio server, and makes them receive large requests unparsed."""

    def __init__(self, server: Any, threads: TextThreads) -> None:
        self._server = server
        self._threads = threads

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing, because generated code also passes the same handlers to `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        bounded = {name: _bounded(handler, self._threads) for name, handler in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, bounded)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_registered_method_handlers(service, bounded)


def check_message(data: bytes, descriptor: Any) -> None:
    """Counts the fields of a serialized message. Raises ApiError if the message has too many fields, or too many
    numbers in lists. Raises UndecodableRequestError if it cannot count to the message's end: protobuf must not
    parse fields that were not counted. Quire's messages have no groups (an old kind of field), so a
    message with groups counts as undecodable."""
    if not _Scan(data).message(descriptor, 0, len(data), ""):
        raise UndecodableRequestError(len(data))


@dataclass(frozen=True, slots=True)
class _Unparsed(UnreadRequest):
    data: bytes
    parse: Callable[[bytes], Any]
    threads: TextThreads

    @property
    def DESCRIPTOR(self) -> Any:  # noqa: N802  # as messages have it
        # `parse` is the method FromString of a message class, which the generated code uses as deserializer. Its
        # __self__ is the message class.
        message_class: Any = getattr(self.parse, "__self__", None)
        return message_class.DESCRIPTOR

    async def read(self) -> Any:
        large_bodies = self.threads.large_bodies
        await large_bodies.enter(len(self.data))
        async with large_bodies.conversion:
            return await self.threads.run_beside(self._work)

    def _work(self) -> Any:
        check_message(self.data, self.DESCRIPTOR)
        try:
            return self.parse(self.data)
        except DecodeError:
            raise UndecodableRequestError(len(self.data)) from None


def _bounded(handler: Any, threads: TextThreads) -> Any:
    parse: Callable[[bytes], Any] = handler.request_deserializer

    def deserialize(data: bytes) -> Any:
        return parse(data) if len(data) <= SMALL_BYTES else _Unparsed(data, parse, threads)

    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    behaviour = handler.unary_stream or handler.unary_unary
    return make(behaviour, request_deserializer=deserialize, response_serializer=handler.response_serializer)


class _Scan:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._num_fields = self._num_numbers = 0

    def message(self, descriptor: Any, position: int, end: int, path: str) -> bool:
        """Counts the fields between `position` and `end`. Returns False if a field is malformed or is a group."""
        data, fields = self._data, _fields(descriptor)
        while position < end:
            start = position
            tag, position = _varint(data, position, end)
            if tag > _MAX_TAG:
                return False
            name, inner, element_size = fields.get(tag >> 3, ("", None, None))
            self._num_fields += 1
            if self._num_fields > MAX_WIRE_FIELDS:
                raise self._too_many(path + name, MAX_WIRE_FIELDS, "fields")
            kind = tag & 7
            if element_size is not None and kind in _NUMBERS and data[position - 1]:
                # A list in which each number has a tag, as Envoy writes JSON's lists. The run counts as one field.
                tag_bytes = data[start:position]
                run = _run_of_numbers(tag_bytes, kind).match(data, start, end)
                if run is None:
                    return False
                position = run.end()
                self._count(path + name, _num_numbers(run.group(), len(tag_bytes), kind))
            elif kind == _VARINT:
                _, position = _varint(data, position, end)
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            elif kind == _LENGTH_DELIMITED:
                size, position = _varint(data, position, end)
                if position + size > end:
                    return False
                if inner is not None and not self.message(inner, position, position + size, f"{path}{name}."):
                    return False
                if element_size:
                    self._count(path + name, size // element_size)
                elif element_size == 0:
                    self._count(path + name, _num_varints(data[position : position + size]))
                position += size
            else:
                return False
        return position == end

    def _count(self, path: str, num_numbers: int) -> None:
        self._num_numbers += num_numbers
        if self._num_numbers > MAX_ITEMS:
            raise self._too_many(path, MAX_ITEMS, "numbers in lists")

    def _too_many(self, path: str, limit: int, what: str) -> ApiError:
        param = path.rstrip(".")
        message = f"Invalid '{param}': the request holds too many values. It may have at most {limit} {what} in all."
        return invalid(message, param, "too_many_values")


@functools.cache
def _fields(descriptor: Any) -> dict[int, tuple[str, Any, int | None]]:
    """Returns a map from each field's number to three values: its name; its message type, or None; and, if it is a list
    of numbers, the size of a number in bytes (0 for varints), else None."""
    found = {}
    for field in descriptor.fields:
        is_list = field.is_repeated
        is_number = field.cpp_type not in (FieldDescriptor.CPPTYPE_MESSAGE, FieldDescriptor.CPPTYPE_STRING)
        size = _FIXED_SIZES.get(field.cpp_type, 0) if is_list and is_number else None
        found[field.number] = (field.name, field.message_type, size)
    return found


@functools.cache
def _run_of_numbers(tag: bytes, kind: int) -> re.Pattern[bytes]:
    """Returns a pattern for 1 to 65,536 numbers that each follow this tag. `tag`: in its shortest form, so that there
    are only as many patterns as there are tags."""
    return re.compile(b"(?:" + re.escape(tag) + _NUMBERS[kind] + b"){1,65536}+", re.DOTALL)


def _num_numbers(run: bytes, tag_size: int, kind: int) -> int:
    if kind == _VARINT:
        return _num_varints(run) // 2  # a tag is a varint, too
    return len(run) // (tag_size + (8 if kind == _FIXED64 else 4))


def _num_varints(data: bytes) -> int:
    return len(data.translate(None, _CONTINUED_BYTES))


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Parses a varint. Returns its value and the position after it. If the varint is truncated or longer than ten
    bytes, returns 7, which is no valid tag, and a position after `end`, so that the message counts as malformed."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    return 7, end + 1
