"""Refuses requests whose body is too large, once the whole body has arrived (ADR 22).

Envoy itself would answer such a request at once, read no more of it, and reset the connection a second later. A client
that reads only after it has sent everything, such as httpx.AsyncClient, would see a connection error in place of the
answer. Envoy therefore passes requests that announce too large a body on to the server here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

from deploy.envoy.render import MAX_READ_AT_ONCE

# More than the headers of a request that Envoy passes on: --max-header-kib is at most 96.
_MAX_HEAD_BYTES = 128 * 1024
_PIECE_BYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


async def refuse_large_bodies(path: Path, message: str) -> asyncio.Server:
    """Starts the server on a Unix socket at `path`. Only Envoy connects to it. It bounds the number of connections, the
    size of bodies and the time that they take (envoy.yaml.j2). `message`: the error's text."""
    # The gateway's Lua filter gives this body the form of the API of the path (errors.lua).
    body = json.dumps({"code": 413, "message": message}).encode()
    answer = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # If the client leaves, Envoy closes the connection.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _forget_request(reader)
            writer.write(answer)
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(refuse, path, limit=_MAX_HEAD_BYTES, backlog=MAX_READ_AT_ONCE)


async def _forget_request(reader: asyncio.StreamReader) -> None:
    """Reads a whole request, and keeps nothing of it. Raises IncompleteReadError if the client leaves."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    left = int(length[1]) if length else 0
    while left > 0:
        left -= len(await reader.readexactly(min(left, _PIECE_BYTES)))
