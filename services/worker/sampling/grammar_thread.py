"""The thread that compiles grammars."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from shared.grammar import grammar_threads

T = TypeVar("T")

# So many jobs of `run` go before one of `run_later` that waits.
_NUM_BEFORE = 3


class GrammarThread:
    """Runs jobs one after the other. A single thread, so that they never take more than one core from the steps."""

    def __init__(self) -> None:
        self._thread = grammar_threads(1)
        self._first: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._later: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        # Number of jobs of `run` since the last job of `run_later`.
        self._num_run = 0

    def run(self, job: Callable[[], T]) -> Future[T]:
        """Runs the job after those that `run` got before."""
        return self._add(self._first, job)

    def run_later(self, job: Callable[[], T]) -> Future[T]:
        """Runs the job after those that `run_later` got before. The jobs of `run` go before it, but not endlessly."""
        return self._add(self._later, job)

    def _add(self, jobs: deque[tuple[Future[Any], Callable[[], Any]]], job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        jobs.append((future, job))
        self._thread.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        """Runs one job. The thread calls it once for each job that was added, so there is one."""
        takes_later = self._later and (not self._first or self._num_run >= _NUM_BEFORE)
        self._num_run = 0 if takes_later else self._num_run + 1
        future, job = (self._later if takes_later else self._first).popleft()
        try:
            future.set_result(job())
        except BaseException as error:  # llguidance's own failures are no Exception
            future.set_exception(error)
