"""`python -m benchmarks.pauses.link LISTEN TARGET`: passes bytes between two Unix sockets. While the process is
suspended, connections stay open and no byte passes, as on a network that drops every packet."""

from __future__ import annotations

import asyncio
import sys

_CHUNK = 65_536


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


async def _connection(target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    ends = [writer]
    try:
        other_reader, other_writer = await asyncio.open_unix_connection(target)
        ends.append(other_writer)
        ways = [asyncio.create_task(_pass(reader, other_writer)), asyncio.create_task(_pass(other_reader, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    except OSError:
        pass  # Nobody listens there now.
    finally:
        for end in ends:
            end.transport.abort()


async def serve(listen: str, target: str) -> None:
    server = await asyncio.start_unix_server(lambda reader, writer: _connection(target, reader, writer), listen)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*(address.removeprefix("unix:") for address in sys.argv[1:3])))
