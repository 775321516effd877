"""One streamed answer, with the times at which its pieces came."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quire.bench.measurement import AnswerError, AnswerReader, Measurement, measure
from quire.bench.session import open_session
from tests.unit.bench.scripted_server import STREAM_END, STREAM_HEAD, chunk, serving, whole

DONE = "[DONE]"
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


def text(piece: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": reason}]}


def delta(reason: str | None = None, **fields: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def read(*arrivals: tuple[float, dict[str, Any] | str]) -> Measurement:
    """A request sent at 10 s, and chunks that come so many seconds later."""
    measurement = Measurement(10.0, input_len=5)
    reader = AnswerReader(measurement)
    for seconds, event in arrivals:
        data = event if isinstance(event, str) else json.dumps(event)
        reader.take(f"data: {data}\n\n".encode(), 10.0 + seconds)
    reader.finish()
    return measurement


def test_a_completion() -> None:
    measurement = read(
        (0.5, text("a")), (0.75, text("b")), (1.25, text("cd")), (1.5, text("", "length")), (9.0, USAGE), (9.0, DONE)
    )

    assert (measurement.input_len, measurement.output_len) == (9, 4)
    assert measurement.ttft == 0.5
    assert measurement.latency == 1.5  # What follows the last choice is no part of the answer.
    assert measurement.tpot == pytest.approx(1.0 / 3)
    assert measurement.inter_token_latencies == [0.25, 0.5]


def test_a_chat_begins_with_its_first_word_not_with_its_role() -> None:
    measurement = read(
        (0.125, delta(role="assistant", content="")),
        (0.5, delta(reasoning_content="hm")),
        (1.0, delta(content="a")),
        (1.25, delta("stop")),
        (1.25, USAGE),
        (1.25, DONE),
    )

    assert (measurement.ttft, measurement.latency) == (0.5, 1.25)
    assert measurement.inter_token_latencies == [0.5]


def test_tokens_without_text_count_where_a_chunk_comes_for_them() -> None:
    completion = read((0.5, text("")), (0.75, text("é")), (1.0, text("", "stop")), (1.0, USAGE))
    chat = read((0.5, delta(content="")), (0.75, delta(content="é")), (1.0, delta("stop")), (1.0, USAGE))

    assert completion.ttft == chat.ttft == 0.5
    assert completion.inter_token_latencies == chat.inter_token_latencies == [0.25]


def test_an_answer_of_no_text_has_its_only_time_twice() -> None:
    measurement = read((0.5, text("", "stop")), (0.5, {"choices": [], "usage": {"completion_tokens": 1}}))

    assert (measurement.ttft, measurement.latency, measurement.output_len) == (0.5, 0.5, 1)
    assert measurement.tpot is None
    assert measurement.inter_token_latencies == []


def test_usage_in_every_chunk_counts_once() -> None:
    chunks = [{**text("a"), "usage": {"prompt_tokens": 9, "completion_tokens": count}} for count in (1, 2, 3)]
    measurement = read(*((0.5 + index, chunk) for index, chunk in enumerate(chunks)), (4.0, DONE))

    assert (measurement.input_len, measurement.output_len) == (9, 3)


def test_without_usage_a_chunk_is_a_token() -> None:
    measurement = read((0.5, {**text("a"), "usage": None}), (0.75, text("b")), (1.0, DONE))

    assert (measurement.input_len, measurement.output_len) == (5, 2)


@pytest.mark.parametrize(
    ("arrivals", "told"),
    [
        ([(0.5, text("a")), (0.75, {"error": {"message": "no worker", "code": 503}})], "in the stream: no worker"),
        ([(0.5, text("a"))], "the stream ended before the answer did"),
        ([], "not a stream of chunks"),
        ([(0.5, DONE)], "not a stream of chunks"),
        ([(0.5, "{cut")], "not a chunk: b'{cut'"),
        ([(0.5, "[1]")], "not a chunk"),
        ([(0.5, '{"choices": [1]}')], "not a chunk"),
        ([(0.5, '{"choices": {"a": 1}}')], "not a chunk"),
    ],
)
def test_what_is_no_answer_is_told(arrivals: list[tuple[float, dict[str, Any] | str]], told: str) -> None:
    with pytest.raises(AnswerError) as failed:
        read(*arrivals)
    assert told in str(failed.value)


async def asked(data: bytes, size: int = 1000) -> Measurement:
    """Of an answer that comes in pieces of so many bytes, after which the server closes the connection."""

    async def answer(head: str, body: bytes, connection: asyncio.Transport) -> None:
        for start in range(0, len(data), size):
            connection.write(data[start : start + size])
            await asyncio.sleep(0)
        connection.close()

    async with serving(answer) as server, open_session("") as session:
        return await measure(session, f"{server.url}/v1/completions", b"{}", 5)


EVENTS = [f"data: {json.dumps(event)}\n\n".encode() for event in (text("a"), text("b", "length"), USAGE)]
STREAM = STREAM_HEAD + b"".join(map(chunk, EVENTS)) + STREAM_END


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "data",
    [STREAM, whole(b"".join(EVENTS)), b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + b"".join(EVENTS)],
)
async def test_an_answer_is_the_same_however_it_is_split(data: bytes, size: int) -> None:
    measurement = await asked(data, size)

    assert (measurement.error, measurement.input_len, measurement.output_len) == ("", 9, 4)
    first, second = measurement.chunk_times
    assert measurement.start < first <= second == measurement.end
    assert size > 7 or first < second


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        STREAM_HEAD + chunk(EVENTS[0]),
        STREAM[:-1],
        whole(b"".join(EVENTS))[:-1],
        whole(b"too hot", "400 Bad Request")[:-1],
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        STREAM_HEAD + b"xyz\r\n",
        STREAM_HEAD + b"5\r\nhello world\r\n",
        b"x" * 100_000,
    ],
)
async def test_an_answer_that_is_cut_or_none_is_told(data: bytes) -> None:
    error = (await asked(data)).error

    assert error.startswith("no whole answer: ")
    assert len(error) < 600


async def test_a_stream_that_ends_too_early_is_told() -> None:
    assert (await asked(STREAM_HEAD + chunk(EVENTS[0]) + STREAM_END)).error == "the stream ended before the answer did"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": {"message": "too hot", "type": "x"}}', "HTTP status 400: too hot"),
        (b'{"message": "too hot"}', "HTTP status 400: too hot"),
        (b"<html>no</html>", "HTTP status 400: <html>no</html>"),
        (b'"no"', "HTTP status 400: no"),
        (b"", "HTTP status 400: "),
    ],
)
async def test_a_refusal_is_told_in_the_server_s_words(body: bytes, told: str) -> None:
    assert (await asked(whole(body, "400 Bad Request"), size=5)).error == told


async def test_a_redirection_is_not_followed() -> None:
    redirection = whole(b"", "307 Temporary Redirect", "location: /")

    assert (await asked(redirection)).error == "HTTP status 307: "
