"""Load on a server that streams as a script says."""

from __future__ import annotations

import asyncio
import time

import pytest

from quire.bench.load import Load, Request
from quire.bench.session import open_session
from tests.fakes.waiting import HANG_S
from tests.unit.bench.scripted_server import STREAM_END, STREAM_HEAD, chunk, serving, whole

CHUNK = chunk(b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n')
END = chunk(
    b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
    b"data: [DONE]\n\n"
)


async def stream(head: str, body: bytes, connection: asyncio.Transport) -> None:
    connection.write(STREAM_HEAD + CHUNK)
    await asyncio.sleep(0.05)
    connection.write(END + STREAM_END)


def requests(url: str, count: int) -> list[Request]:
    return [Request(url, b"{}", 3)] * count


async def test_answers_are_timed() -> None:
    async with serving(stream) as server, open_session("") as session:
        load = Load(session, None, lambda: None)
        before = time.perf_counter()
        await load.run(requests(server.url, 5), [0.0] * 5)
        elapsed = time.perf_counter() - before

    assert 0.05 <= load.duration <= elapsed  # the server pauses for so long
    for measurement in load.measurements:
        assert (measurement.error, measurement.input_len, measurement.output_len) == ("", 3, 2)
        assert 0 < measurement.ttft < measurement.latency <= load.duration
        assert measurement.tpot is not None
        assert 0 < measurement.tpot < measurement.latency
        assert measurement.inter_token_latencies == pytest.approx([measurement.tpot])


async def test_no_more_requests_than_asked_for_are_in_progress() -> None:
    running = most = 0
    is_full = asyncio.Event()

    async def count(head: str, body: bytes, connection: asyncio.Transport) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            is_full.set()
        await is_full.wait()
        await asyncio.sleep(0)
        running -= 1
        connection.write(STREAM_HEAD + CHUNK + END + STREAM_END)

    async with serving(count) as server, open_session("") as session:
        load = Load(session, 3, lambda: None)
        await load.run(requests(server.url, 20), [0.0] * 20)

    assert len(load.measurements) == 20
    assert (most, server.num_connections) == (3, 3)


async def test_requests_are_sent_at_their_times() -> None:
    times = [0.0, 0.1, 0.25]
    async with serving(stream) as server, open_session("") as session:
        load = Load(session, None, lambda: None)
        before = time.perf_counter()
        await load.run(requests(server.url, 3), times)

    starts = sorted(measurement.start - before for measurement in load.measurements)
    for moment, start in zip(times, starts, strict=True):
        assert start >= moment - 0.002  # later where the machine is busy


async def test_failures_are_measurements_too() -> None:
    async def refuse_some(head: str, body: bytes, connection: asyncio.Transport) -> None:
        if "/refused" in head:
            connection.write(whole(b'{"error": {"message": "no such model"}}', "404 Not Found"))
        elif "/cut" in head:
            connection.write(STREAM_HEAD + CHUNK)
            connection.close()
        else:
            await stream(head, body, connection)

    num_done = 0

    def count() -> None:
        nonlocal num_done
        num_done += 1

    async with serving(refuse_some) as server, open_session("") as session:
        load = Load(session, None, count)
        asked = [Request(server.url + path, b"{}", 3) for path in ("/", "/refused", "/cut", "/")]
        await load.run(asked, [0.0] * 4)

    assert num_done == 4
    errors = sorted(measurement.error for measurement in load.measurements)
    assert errors[:3] == ["", "", "HTTP status 404: no such model"]
    assert errors[3].startswith("no whole answer: Response payload is not completed")


async def test_no_server_is_a_failure_of_each_request() -> None:
    async with serving(stream) as server:
        pass
    async with open_session("") as session:
        load = Load(session, None, lambda: None)
        await load.run(requests(server.url, 2), [0.0, 0.0])

    assert len(load.measurements) == 2
    assert all(measurement.error.startswith("no connection: ") for measurement in load.measurements)


async def test_a_load_that_is_cut_short_keeps_what_came_and_leaves_nobody_waiting() -> None:
    asked = waiting = 0

    async def answer_three(head: str, body: bytes, connection: asyncio.Transport) -> None:
        nonlocal asked, waiting
        asked += 1
        if asked <= 3:
            connection.write(STREAM_HEAD + CHUNK + END + STREAM_END)
            return
        connection.write(STREAM_HEAD + CHUNK)
        waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            waiting -= 1

    async def until_waiting(count: int) -> None:
        while waiting != count:  # noqa: ASYNC110 - counted by the server's tasks
            await asyncio.sleep(0.01)

    async with serving(answer_three) as server, open_session("") as session:
        load = Load(session, 3, lambda: None)
        running = asyncio.create_task(load.run(requests(server.url, 50), [0.0] * 50))
        await asyncio.wait_for(until_waiting(3), HANG_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(until_waiting(0), HANG_S)

    assert [measurement.error for measurement in load.measurements] == [""] * 3
    assert asked == 6
    assert load.duration > 0
