"""Starts the parts of a stack together, keeps them running, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from quire.cli.part import Part, PartObserver, PartSpec
from quire.cli.restarts import Restarts
from shared.status import Status

# After every part has said that it is ready, this long for the stack to answer as a whole.
ANSWER_TIMEOUT_S = 60.0
POLL_S = 0.05

# Asks the stack itself; what is still wrong, or None when it works.
Check = Callable[[], Awaitable[str | None]]


class StackError(Exception):
    """Why the stack stops; it names the part."""


class Display(PartObserver, Protocol):
    def note(self, text: str) -> None:
        """Something a person should know, such as a restart."""


class Supervisor:
    """`specs` stand in the order in which they are stopped. All of them start at once: each dials the others until they
    answer."""

    def __init__(
        self, specs: Sequence[PartSpec], environment: Mapping[str, str], display: Display, check: Check
    ) -> None:
        self._specs = tuple(specs)
        self._environment = environment
        self._display = display
        self._check = check
        self._parts: dict[str, Part] = {}
        self._ready = {spec.name: asyncio.Event() for spec in specs}
        self._started = False
        self._stopping = asyncio.Event()

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Until `stop` is set, or a part fails for good: then raises StackError. `on_ready` runs once the stack works.
        `hurry` ends all parts at once. No part is left when this returns, however it does."""
        keepers = [asyncio.create_task(self._keep(spec)) for spec in self._specs]
        starting = asyncio.create_task(self._start(on_ready))
        waiting = asyncio.create_task(stop.wait())
        tasks: set[asyncio.Task[Any]] = {*keepers, starting, waiting}
        try:
            while waiting in tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if waiting not in done:
                    for task in done:
                        task.result()
        finally:
            starting.cancel()
            waiting.cancel()
            await self._stop_all(keepers, hurry)

    async def _keep(self, spec: PartSpec) -> None:
        """Runs one part, again and again if it must. Raises StackError when it may not be started again."""
        restarts = Restarts()
        while not self._stopping.is_set():
            try:
                part = self._parts[spec.name] = await Part.start(spec, self._environment, self)
            except OSError as error:
                raise StackError(f"{spec.name} cannot be started: {error}") from error
            if self._stopping.is_set():
                part.kill()
            reason = await part.ended()
            if self._stopping.is_set():
                return
            if not self._started:
                raise StackError(f"{spec.name} failed: {reason}")
            pause = restarts.pause(time.monotonic())
            if pause is None:
                raise StackError(f"{spec.name} failed for the fourth time within a minute: {reason}")
            self._display.note(f"{spec.name}: {reason.partition(chr(10))[0]}; starting it again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _start(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Returns when the stack works as a whole. Raises StackError when its parts work and it does not."""
        for ready in self._ready.values():
            await ready.wait()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (wrong := await self._check()) is not None:
            if time.monotonic() > deadline:
                raise StackError(f"every part is ready, but after {ANSWER_TIMEOUT_S:g} s the stack is not: {wrong}")
            await asyncio.sleep(POLL_S)
        self._started = True
        await on_ready()

    def on_status(self, name: str, status: Status) -> None:
        if status.is_note:
            self._display.note(f"{name}: {status.detail}")
            return
        if status.state == "ready":
            self._ready[name].set()
        self._display.on_status(name, status)

    def on_line(self, name: str, line: str) -> None:
        self._display.on_line(name, line)

    async def _stop_all(self, keepers: Sequence[asyncio.Task[None]], hurry: asyncio.Event) -> None:
        self._stopping.set()
        in_order = asyncio.create_task(self._stop_in_order())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((in_order, hurried), return_when=asyncio.FIRST_COMPLETED)
        in_order.cancel()
        hurried.cancel()
        for part in self._parts.values():
            if part.running:
                part.kill()
        # Each ends with its part.
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _stop_in_order(self) -> None:
        for spec in self._specs:
            part = self._parts.get(spec.name)
            if part is not None and part.running:
                await part.stop()
