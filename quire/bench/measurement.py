"""Measures one streamed answer as its chunks arrive."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from quire.bench.events import EventParser

_JSON = {"Content-Type": "application/json"}
# Maximum length of an error message that is kept.
_MAX_ERROR_CHARS = 500


class AnswerError(Exception):
    """An answer that is an error, incomplete, or not a stream of chunks."""


@dataclass(slots=True)
class Measurement:
    """The measurement of one request. Times are in seconds of time.perf_counter. The values are valid only if `error`
    is empty."""

    # Time at which the request was sent: after any wait for the concurrency limit, before connecting.
    start: float
    # Token counts from the answer's usage. If the answer has no usage, input_len is the benchmark's own count of the
    # prompt's tokens (0 if unknown), and output_len is the number of chunks with output.
    input_len: int
    output_len: int = 0
    # chunk_times: arrival times of chunks with output. end: arrival time of the answer's last chunk.
    chunk_times: list[float] = field(default_factory=list)
    end: float = 0.0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.chunk_times[0] - self.start

    @property
    def latency(self) -> float:
        return self.end - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for fewer than two tokens."""
        return (self.latency - self.ttft) / (self.output_len - 1) if self.output_len > 1 else None

    @property
    def inter_token_latencies(self) -> list[float]:
        return [after - before for before, after in pairwise(self.chunk_times)]


async def measure(session: aiohttp.ClientSession, url: str, body: bytes, input_len: int) -> Measurement:
    """Requests a streamed answer and measures it. `body`: JSON. If the request fails, the measurement's `error` tells
    why. When cancelled, closes the connection, so that the server stops generating."""
    measurement = Measurement(time.perf_counter(), input_len)
    try:
        async with session.post(url, data=body, headers=_JSON, allow_redirects=False) as response:
            if response.status != 200:
                raise AnswerError(f"HTTP status {response.status}: {error_message(await response.read())}")
            reader = AnswerReader(measurement)
            async for piece in response.content.iter_any():
                reader.take(piece, time.perf_counter())
            reader.finish()
    except OSError as error:
        measurement.error = f"no connection: {error}"
    except aiohttp.ClientError as error:
        measurement.error = f"no whole answer: {error_text(error)}"
    except AnswerError as error:
        measurement.error = str(error)
    return measurement


class AnswerReader:
    """Fills a measurement from the bytes of a streamed answer."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._events = EventParser()
        self._is_whole = False

    def take(self, data: bytes, now: float) -> None:
        """Reads `data`, which arrived at `now`. Raises AnswerError if the stream contains an error or is malformed."""
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self._is_whole = True
            else:
                self._take_event(event, now)

    def finish(self) -> None:
        """Completes the measurement at the end of the stream. Raises AnswerError if the answer is incomplete."""
        measurement = self._measurement
        if not measurement.end:
            raise AnswerError("the answer is not a stream of chunks")
        if not self._is_whole:
            raise AnswerError("the stream ended before the answer did")
        if not measurement.chunk_times:
            measurement.chunk_times.append(measurement.end)
        measurement.output_len = measurement.output_len or len(measurement.chunk_times)

    def _take_event(self, event: bytes, now: float) -> None:
        try:
            self._take_chunk(json.loads(event), now)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise AnswerError(f"an event of the stream is not a chunk: {event[:80]!r}") from None

    def _take_chunk(self, chunk: Mapping[str, Any], now: float) -> None:
        measurement = self._measurement
        if error := chunk.get("error"):
            raise AnswerError(f"in the stream: {error_text(error)}")
        if choices := chunk.get("choices"):
            choice = choices[0]
            measurement.end = now
            if carries_output(choice):
                measurement.chunk_times.append(now)
            if choice.get("finish_reason"):
                self._is_whole = True
        if usage := chunk.get("usage"):
            measurement.input_len = usage.get("prompt_tokens") or measurement.input_len
            measurement.output_len = usage.get("completion_tokens") or measurement.output_len


def carries_output(choice: Mapping[str, Any]) -> bool:
    """Returns whether a chunk carries output. A chunk with only a role or a finish reason carries no output. A chunk
    without text can carry a token, because some tokens have no text."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text")) or not choice.get("finish_reason")
    if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")):
        return True
    return "role" not in delta and not choice.get("finish_reason")


def error_message(body: bytes) -> str:
    """Extracts the message from an error's body, in OpenAI's format or any other."""
    text = body.decode(errors="replace").strip()
    try:
        error = json.loads(text)
    except ValueError:
        return text[:_MAX_ERROR_CHARS]
    return error_text(error.get("error", error) if isinstance(error, dict) else error)


def error_text(error: object) -> str:
    """Returns the message of a JSON error object or of an exception."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_MAX_ERROR_CHARS]
