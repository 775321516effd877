"""The smallest HTTP/2 client (RFC 9113): one request on a connection of its own, with any headers and trailers, or
without its end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from tests.fakes.waiting import HANG_S

Fields = Sequence[tuple[bytes, bytes]]

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_NO_ERROR = 0
_INITIAL_WINDOW_SIZE, _DEFAULT_WINDOW_SIZE = 4, 65535
_MAX_FRAME_BYTES = 16384
_STREAM = 1


async def request(
    address: str,
    method: bytes,
    path: bytes,
    headers: Fields = (),
    body: bytes = b"",
    trailers: Fields = (),
    may_send_more: asyncio.Event | None = None,
) -> bytes:
    """The body of the answer. Raises ConnectionError where the server resets the stream or closes the connection.
    `may_send_more`: when it is set, the server may send more than the first 64 KiB."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    widening = asyncio.create_task(_widen(writer, may_send_more or asyncio.Event()))
    try:
        writer.write(_start(address, method, path, headers, end_stream=not body and not trailers))
        if body:
            writer.write(_frame(_DATA, 0 if trailers else _END_STREAM, _STREAM, body))
        if trailers:
            writer.write(_block(trailers, end_stream=True))
        async with asyncio.timeout(HANG_S):
            return await _body(reader, writer)
    finally:
        widening.cancel()
        writer.close()


async def send_unfinished(address: str, path: bytes, num_bytes: int, sent: asyncio.Future[None]) -> bool:
    """Sends so many bytes of a body that never ends, as the server's windows permit, and then completes `sent`. Returns
    when the request has come to an end: whether the server reset it, instead of closing the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_start(address, b"POST", path, ((b"content-type", b"application/json"),), end_stream=False))
        windows = {0: _DEFAULT_WINDOW_SIZE, _STREAM: _DEFAULT_WINDOW_SIZE}
        while True:
            while (size := min(num_bytes, _MAX_FRAME_BYTES, *windows.values())) > 0:
                writer.write(_frame(_DATA, 0, _STREAM, b" " * size))
                windows = {stream: window - size for stream, window in windows.items()}
                num_bytes -= size
            await writer.drain()
            if num_bytes == 0 and not sent.done():
                sent.set_result(None)
            kind, flags, stream, payload = await _read_frame(reader)
            if kind == _RST_STREAM:
                return True
            if kind == _WINDOW_UPDATE:
                windows[stream] += int.from_bytes(payload, "big")
            elif kind == _PING and not flags & _ACK:
                writer.write(_frame(_PING, _ACK, 0, payload))
            elif kind == _SETTINGS:
                settings = dict(struct.iter_unpack(">HI", payload))
                windows[_STREAM] += settings.get(_INITIAL_WINDOW_SIZE, _DEFAULT_WINDOW_SIZE) - _DEFAULT_WINDOW_SIZE
    except ConnectionError:
        return False
    finally:
        writer.close()


def _start(address: str, method: bytes, path: bytes, headers: Fields, *, end_stream: bool) -> bytes:
    pseudo = ((b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", address.encode()))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"")
    return preface + _block((*pseudo, *headers), end_stream=end_stream)


async def _widen(writer: asyncio.StreamWriter, may_send_more: asyncio.Event) -> None:
    await may_send_more.wait()
    for stream in (0, _STREAM):
        writer.write(_frame(_WINDOW_UPDATE, 0, stream, struct.pack(">I", 2**30)))


async def _body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    body = b""
    while True:
        kind, flags, _, payload = await _read_frame(reader)
        if kind == _PING and not flags & _ACK:
            writer.write(_frame(_PING, _ACK, 0, payload))
        # A server that stops says goodbye without an error, and still completes its answers.
        is_goodbye = kind == _GOAWAY and int.from_bytes(payload[4:8], "big") == _NO_ERROR
        if kind in (_RST_STREAM, _GOAWAY) and not is_goodbye:
            raise ConnectionError(f"frame {kind}: {payload!r}")
        if kind == _DATA:
            body += payload
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return body


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """Kind, flags, stream and payload."""
    try:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the server closed the connection") from error
    return head[3], head[4], int.from_bytes(head[5:], "big"), payload


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
