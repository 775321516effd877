"""Sends requests at their arrival times and collects the measurements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from quire.bench.measurement import Measurement, measure


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the benchmark. `body`: JSON. `input_len`: number of prompt tokens, 0 if unknown."""

    url: str
    body: bytes
    input_len: int


class Load:
    def __init__(
        self, session: aiohttp.ClientSession, max_concurrency: int | None, on_done: Callable[[], None]
    ) -> None:
        """`on_done` is called after each answer. `max_concurrency`: None for no limit."""
        self._session = session
        self._turns = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._on_done = on_done
        # Measurements of finished requests, successful or failed, in the order in which they finished.
        self.measurements: list[Measurement] = []
        # Seconds from the start to the last answer, or to the cancellation.
        self.duration = 0.0

    async def run(self, requests: Sequence[Request], times: Sequence[float]) -> None:
        """Sends each request at its time in `times`, which are seconds from now, and waits for all answers. While
        `max_concurrency` requests are in progress, the next request waits. When cancelled, drops the requests in
        progress."""
        start = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for request, moment in zip(requests, times, strict=True):
                    if moment:
                        await asyncio.sleep(start + moment - time.perf_counter())
                    if self._turns is not None:
                        await self._turns.acquire()
                    group.create_task(self._send(request))
        finally:
            self.duration = time.perf_counter() - start

    async def _send(self, request: Request) -> None:
        try:
            self.measurements.append(await measure(self._session, request.url, request.body, request.input_len))
        finally:
            if self._turns is not None:
                self._turns.release()
        self._on_done()
