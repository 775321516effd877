"""Sends requests at their times and collects what became of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from quire.bench.measurement import Measurement, measure


@dataclass(frozen=True, slots=True)
class Request:
    """`body`: JSON; `input_len`: tokens of its prompt, 0 if unknown."""

    url: str
    body: bytes
    input_len: int


class Load:
    def __init__(
        self, session: aiohttp.ClientSession, max_concurrency: int | None, on_done: Callable[[], None]
    ) -> None:
        """`on_done` is called with each answer that is there."""
        self._session = session
        self._turns = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._on_done = on_done
        # Of answers that are there, failed or not, in the order in which they ended.
        self.measurements: list[Measurement] = []
        # Seconds from the start to the last answer, or to the moment it was cancelled.
        self.duration = 0.0

    async def run(self, requests: Sequence[Request], times: Sequence[float]) -> None:
        """Sends each request at its time, in seconds from now, or when its turn comes. Cancelled, it drops those in
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
