"""Threads for work on long texts, because such work would block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from services.router.errors import overloaded
from services.router.limits import LargeBodies
from services.router.template import ForeignTemplates

# Texts of up to this length are processed on the event loop, because that takes less time than the use of a thread.
INLINE_CHARS = 2048
# Maximum number of long texts that threads process or that wait for a thread, across all models.
_MAX_PENDING = 256

R = TypeVar("R")


class TextThreads:
    """Threads for work on long texts, so that it does not block the event loop. Also owns the processes that render
    requests' own chat templates."""

    def __init__(self, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._num_pending = 0
        # Renders the chat templates that requests contain.
        self.foreign_templates = ForeignTemplates()
        # Limits how many large request bodies are processed at a time. Threads of this object parse them.
        self.large_bodies = LargeBodies()
        # Runs the work of `run_alone`. It has only one thread, because the tokenizers library keeps memory for each
        # thread that has used it.
        self._long_texts = ThreadPoolExecutor(1, thread_name_prefix="long-texts")

    @property
    def num_pending(self) -> int:
        """Number of long texts that threads are processing or that wait for a thread."""
        return self._num_pending

    async def run(self, size: int, work: Callable[[], R]) -> R:
        """Returns `work()`, run on a thread if `size` (characters or tokens) is large. Raises ApiError when
        overloaded."""
        if size <= INLINE_CHARS:
            return work()
        self._check_room()
        return await self.run_beside(work)

    async def run_alone(self, work: Callable[[], R]) -> R:
        """Returns `work()`, run on the single thread for work that takes much memory. Raises ApiError when
        overloaded."""
        self._check_room()
        return await self._run_on(self._long_texts, work)

    async def run_beside(self, work: Callable[[], R]) -> R:
        """Returns `work()`, always run on a thread. If the caller is cancelled before the work has begun, the work is
        dropped. If the work has begun, CancelledError is raised only after its end, because it still uses the caller's
        objects."""
        return await self._run_on(self._executor, work)

    async def _run_on(self, executor: ThreadPoolExecutor, work: Callable[[], R]) -> R:
        running = executor.submit(work)
        self._num_pending += 1
        ended = asyncio.wrap_future(running)
        try:
            await asyncio.wait((ended,))
            return ended.result()
        except asyncio.CancelledError:
            running.cancel()
            await _wait_in_any_case(ended)
            raise
        finally:
            self._num_pending -= 1
            # An exception of `work` refers to this frame, and the frame's futures refer to the exception. Without
            # `del`, this cycle would keep the frame alive until a garbage collection.
            del running, ended

    def _check_room(self) -> None:
        """Raises ApiError if too many long texts wait."""
        if self._num_pending >= _MAX_PENDING:
            raise overloaded("Too many long texts are waiting to be tokenized.")

    def start(self, work: Callable[[], object]) -> None:
        """Runs `work` in the background."""
        self._executor.submit(work)

    def close(self) -> None:
        for executor in (self._executor, self._long_texts):
            executor.shutdown(wait=False, cancel_futures=True)
        self.foreign_templates.close()


async def _wait_in_any_case(ended: asyncio.Future[Any]) -> None:
    """Waits until `ended` is done, even if the caller is cancelled meanwhile."""
    while not ended.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((ended,))
    if not ended.cancelled():
        # Retrieves the exception, because asyncio logs exceptions that are never retrieved.
        ended.exception()
