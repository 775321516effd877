"""One streamed answer, timed as its pieces arrive."""

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
# Of an answer that is an error, so much is kept.
_MAX_ERROR_CHARS = 500


class AnswerError(Exception):
    """What came is no answer one can measure, or not a whole one."""


@dataclass(slots=True)
class Measurement:
    """Of one request; times in seconds of time.perf_counter. What it says holds only where `error` is empty."""

    # When it was sent: waiting for a turn under a limit on concurrency is not part of it, connecting is.
    start: float
    # Tokens, as the server counts them; without its word, those that were sent, and one per chunk of output.
    input_len: int
    output_len: int = 0
    # When each chunk with output came, and when the last one did that belongs to the answer.
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
        """Seconds per token after the first; None with fewer than two."""
        return (self.latency - self.ttft) / (self.output_len - 1) if self.output_len > 1 else None

    @property
    def inter_token_latencies(self) -> list[float]:
        return [after - before for before, after in pairwise(self.chunk_times)]


async def measure(session: aiohttp.ClientSession, url: str, body: bytes, input_len: int) -> Measurement:
    """Asks for a streamed answer; `body` is JSON. What goes wrong is in the measurement. Cancelled, it closes the
    connection, which tells the server to stop."""
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
    """Fills a measurement from a stream's bytes."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._events = EventParser()
        self._is_whole = False

    def take(self, data: bytes, now: float) -> None:
        """Raises AnswerError where the stream says so, or makes no sense."""
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self._is_whole = True
            else:
                self._take_event(event, now)

    def finish(self) -> None:
        """The answer is there. Raises AnswerError where it is none."""
        measurement = self._measurement
        if not measurement.end:
            raise AnswerError("the answer is no stream of chunks")
        if not self._is_whole:
            raise AnswerError("the stream broke off")
        if not measurement.chunk_times:
            measurement.chunk_times.append(measurement.end)
        measurement.output_len = measurement.output_len or len(measurement.chunk_times)

    def _take_event(self, event: bytes, now: float) -> None:
        try:
            self._take_chunk(json.loads(event), now)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise AnswerError(f"an event of the stream is no chunk: {event[:80]!r}") from None

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
    """Whether a chunk stands for output. One that only says who speaks, or why the answer ends, does not; one without
    text may, as not every token has some."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text")) or not choice.get("finish_reason")
    if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")):
        return True
    return "role" not in delta and not choice.get("finish_reason")


def error_message(body: bytes) -> str:
    """What an error's body says, in OpenAI's shape or any other."""
    text = body.decode(errors="replace").strip()
    try:
        error = json.loads(text)
    except ValueError:
        return text[:_MAX_ERROR_CHARS]
    return error_text(error.get("error", error) if isinstance(error, dict) else error)


def error_text(error: object) -> str:
    """Of an error's object in JSON, or of an exception."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_MAX_ERROR_CHARS]
