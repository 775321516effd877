"""A minimal HTTP client for the gateway and Envoy's admin interface, over TCP or a Unix socket."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str


async def ask(
    address: str,
    path: str,
    *,
    method: str = "GET",
    api_key: str | None = None,
    timeout_s: float = 2.0,
) -> Answer:
    """Sends a request to `address` (`host:port` or `unix:/path`) and returns the answer. Raises OSError if no answer
    arrives within `timeout_s` seconds, or none that is complete."""
    try:
        return await asyncio.wait_for(_ask(address, path, method, api_key), timeout_s)
    except TimeoutError as error:
        raise OSError(f"{address} did not answer within {timeout_s:g} s") from error


async def _ask(address: str, path: str, method: str, api_key: str | None) -> Answer:
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    request = [f"{method} {path} HTTP/1.1", "host: localhost", "content-length: 0", "connection: close"]
    if api_key is not None:
        request.append(f"authorization: Bearer {api_key}")
    try:
        writer.write("\r\n".join([*request, "", ""]).encode())
        await writer.drain()
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(f"{address} did not answer in HTTP")
    if any(line.lower().replace(" ", "") == "transfer-encoding:chunked" for line in lines[1:]):
        body = _unchunked(body)
    return Answer(int(words[1]), body.decode(errors="replace"))


def _unchunked(body: bytes) -> bytes:
    """Raises OSError if the last chunk is missing."""
    pieces: list[bytes] = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size := size.partition(b";")[0]):
            raise OSError("the answer is not complete")
        length = int(size, 16)
        if length == 0:
            return b"".join(pieces)
        pieces.append(rest[:length])
        body = rest[length + 2 :]
