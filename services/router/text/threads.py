"""Threads for work on long texts, which would hold up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from services.router.errors import overloaded
from services.router.limits import LargeBodies
from services.router.template import ForeignTemplates

# Below this, working on a text takes less than handing it to a thread would cost the event loop.
_INLINE_CHARS = 2048
# Long texts that wait for a thread, over all models.
_MAX_PENDING = 256

R = TypeVar("R")


class TextThreads:
    """A few threads for work on long texts, so that it does not hold up the event loop, and the processes that render
    the templates of requests."""

    def __init__(self, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._num_pending = 0
        # Renders the templates that requests bring.
        self.foreign_templates = ForeignTemplates()
        # What may be converted at a time; its work is done on these threads.
        self.large_bodies = LargeBodies()
        # One thread, because the library's memory stays with the thread that worked on a text.
        self._long_texts = ThreadPoolExecutor(1, thread_name_prefix="long-texts")

    @property
    def num_pending(self) -> int:
        """Long texts that are worked on or wait for it."""
        return self._num_pending

    async def run(self, size: int, work: Callable[[], R]) -> R:
        """`work()`; beside the event loop if `size` (characters, tokens) is large. Raises ApiError when overloaded."""
        if size <= _INLINE_CHARS:
            return work()
        self._check_room()
        return await self.run_beside(work)

    async def run_alone(self, work: Callable[[], R]) -> R:
        """As `run`, for work that takes much memory: one at a time."""
        self._check_room()
        return await self._run_on(self._long_texts, work)

    async def run_beside(self, work: Callable[[], R]) -> R:
        """`work()`, beside the event loop in any case. A caller that is cancelled goes on when the work has ended, or
        at once where it had not begun and never will: what the caller holds is in use until then."""
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
            # An error of the work refers to this frame, which would keep it until a collection.
            del running, ended

    def _check_room(self) -> None:
        """Raises ApiError when too much waits."""
        if self._num_pending >= _MAX_PENDING:
            raise overloaded("Too many long texts are waiting to be tokenized.")

    def start(self, work: Callable[[], object]) -> None:
        """Runs `work` some time; nobody waits for it."""
        self._executor.submit(work)

    def close(self) -> None:
        for executor in (self._executor, self._long_texts):
            executor.shutdown(wait=False, cancel_futures=True)
        self.foreign_templates.close()


async def _wait_in_any_case(ended: asyncio.Future[Any]) -> None:
    """However often the caller is cancelled meanwhile."""
    while not ended.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((ended,))
    if not ended.cancelled():
        # Nobody else asks for it, and asyncio would log that.
        ended.exception()
