"""An event loop in a thread of its own, for programs that have none, or have one that runs already."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


class BackgroundLoop:
    """One for all of a program's LLMs: gRPC's events go to every loop that has channels. It ends with the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner = 0

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """What `work` returns or raises, wherever this is called but on the loop itself. Interrupted, it cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Nobody waits for it."""
        asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._owner != os.getpid():  # A forked process has the loop and not its thread.
                self._loop, self._owner = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="quire-llm", daemon=True).start()
            return self._loop


BACKGROUND = BackgroundLoop()
