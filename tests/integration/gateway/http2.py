"""The smallest HTTP/2 client (RFC 9113): one request on a connection of its own, with any headers and trailers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from tests.fakes.waiting import HANG_S

Fields = Sequence[tuple[bytes, bytes]]

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 7, 9
_END_STREAM, _END_HEADERS = 1, 4
_MAX_FRAME_BYTES = 16384
_STREAM = 1


async def request(
    address: str, method: bytes, path: bytes, headers: Fields = (), body: bytes = b"", trailers: Fields = ()
) -> bytes:
    """The body of the answer. Raises ConnectionError where the server resets the stream or closes the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        pseudo = ((b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", address.encode()))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        writer.write(_block((*pseudo, *headers), end_stream=not body and not trailers))
        if body:
            writer.write(_frame(_DATA, 0 if trailers else _END_STREAM, _STREAM, body))
        if trailers:
            writer.write(_block(trailers, end_stream=True))
        async with asyncio.timeout(HANG_S):
            return await _body(reader)
    finally:
        writer.close()


async def _body(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        try:
            head = await reader.readexactly(9)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the server closed the connection") from error
        kind, flags = head[3], head[4]
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if kind in (_RST_STREAM, _GOAWAY):
            raise ConnectionError(f"frame {kind}: {payload!r}")
        if kind == _DATA:
            body += payload
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return body


def _block(fields: Fields, *, end_stream: bool) -> bytes:
    """A HEADERS frame, and as many CONTINUATION frames as it takes."""
    # Literals that are never added to a table, without Huffman coding.
    data = b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)
    pieces = [data[start : start + _MAX_FRAME_BYTES] for start in range(0, len(data), _MAX_FRAME_BYTES)]
    frames = []
    for index, piece in enumerate(pieces):
        flags = _END_HEADERS if index == len(pieces) - 1 else 0
        if index == 0 and end_stream:
            flags |= _END_STREAM
        frames.append(_frame(_CONTINUATION if index else _HEADERS, flags, _STREAM, piece))
    return b"".join(frames)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _string(data: bytes) -> bytes:
    """HPACK's string literal (RFC 7541, 5.1 and 5.2)."""
    length = len(data)
    if length < 127:
        return bytes([length]) + data
    encoded, rest = bytearray([127]), length - 127
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    return bytes(encoded) + bytes([rest]) + data
