"""Lines come out as they went in, however the bytes came, and nothing waits for a pipe but whoever reads it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from quire.batch.lines import Line, LineSplitter, read_lines, write_all


def split(blocks: list[bytes], max_bytes: int = 1000) -> list[Line]:
    splitter = LineSplitter(max_bytes)
    return [line for block in blocks for line in splitter.feed(block)] + list(splitter.end())


@given(st.lists(st.text("ab \n", max_size=12).map(str.encode), max_size=8), st.integers(1, 8))
def test_lines_do_not_depend_on_how_the_bytes_come(blocks: list[bytes], max_bytes: int) -> None:
    expected = [
        Line(number, None if len(text) > max_bytes else text)
        for number, text in enumerate(b"".join(blocks).split(b"\n"), 1)
        if text.strip() or len(text) > max_bytes
    ]
    assert split(blocks, max_bytes) == expected


def test_a_line_that_is_too_long_is_not_kept_in_memory() -> None:
    splitter = LineSplitter(max_bytes=10)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 100)) == []
    assert splitter._pieces == []
    assert list(splitter.feed(b"\nnext\n")) == [Line(1, None), Line(2, b"next")]


async def test_a_file_is_read_from_where_it_stands_without_an_end_of_line(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\r\none\r\n" + b"x" * 1_000_000 + b"\nlast")
    with path.open("rb") as file:
        lines = [line async for line in read_lines(file.fileno())]

    assert [(line.number, len(line.text or b"")) for line in lines] == [(2, 4), (3, 1_000_000), (4, 4)]


async def test_the_loop_goes_on_while_a_pipe_has_nothing() -> None:
    reader, writer = os.pipe()
    lines = read_lines(reader)
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    assert not waiting.done()

    os.write(writer, b"a line\nhalf")
    assert await waiting == Line(1, b"a line")
    os.close(writer)
    assert await anext(lines) == Line(2, b"half")
    os.close(reader)


async def test_the_loop_goes_on_while_a_pipe_is_full() -> None:
    reader, writer = os.pipe()
    data = bytes(range(256)) * 1024  # a pipe holds 64 KiB
    writing = asyncio.create_task(write_all(writer, data, may_wait=True))
    received = b""
    while len(received) < len(data):
        await asyncio.sleep(0)
        received += await asyncio.to_thread(os.read, reader, 10_000)

    await writing
    assert received == data
    os.close(reader)
    os.close(writer)
