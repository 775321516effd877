"""Starts the parts of a stack, restarts parts that crash, and stops all parts at the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from quire.cli.part import Part, PartObserver, PartSpec
from quire.cli.restarts import Restarts
from shared.status import Status

# After all parts have reported that they are ready, the stack must pass its check within this time.
ANSWER_TIMEOUT_S = 60.0
POLL_S = 0.05

# Checks the stack as a whole; returns its problem, or None if it works.
Check = Callable[[], Awaitable[str | None]]


class StackError(Exception):
    """A failure that stops the stack. If one part caused it, the message names the part."""


class Display(PartObserver, Protocol):
    def note(self, text: str) -> None:
        """Shows the user a message, such as the restart of a part."""


class Supervisor:
    """Runs the parts of a stack. `specs`: the parts in the order in which they are stopped. All parts start at the same
    time, and each part retries its connections until the others answer."""

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
        """Runs the stack until `stop` is set, then stops the parts in order, or kills them at once if `hurry` is set.
        Calls `on_ready` once the stack works. No part is left when this method returns or raises. Raises StackError if
        the stack does not start, or if a part fails too often."""
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
        """Runs one part and restarts it when it crashes. Raises StackError if the part cannot be started, if it
        crashes before the stack works, or if it crashes too often."""
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
        """Waits until the stack works, then calls `on_ready`. Raises StackError if all parts are ready but the stack
        does not answer."""
        for spec in self._specs:
            if spec.is_awaited:
                await self._ready[spec.name].wait()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (wrong := await self._check()) is not None:
            if time.monotonic() > deadline:
                raise StackError(
                    f"every part is ready, but the stack does not work after {ANSWER_TIMEOUT_S:g} s: {wrong}"
                )
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
        # A keeper ends when its part has ended.
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _stop_in_order(self) -> None:
        for _, specs in groupby(self._specs, key=lambda spec: spec.kind or spec.name):
            parts = [self._parts[spec.name] for spec in specs if spec.name in self._parts]
            await asyncio.gather(*(part.stop() for part in parts if part.running))
