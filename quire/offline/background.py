"""An event loop in its own thread, for programs without an event loop and for programs whose loop is already
running."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


class BackgroundLoop:
    """The event loop that all LLM objects of a program share. A single loop saves work, because each event of gRPC
    wakes every loop that has channels. The loop ends with the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner = 0

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs `work` on the loop and returns its result or raises its error. Cancels `work` if the caller is
        interrupted. Must not be called on the loop itself, because the call would block the loop."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Starts `work` on the loop without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._owner != os.getpid():  # A forked process has no copy of the thread.
                self._loop, self._owner = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="quire-llm", daemon=True).start()
            return self._loop


BACKGROUND = BackgroundLoop()
