"""The thread that compiles grammars."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from shared.grammar import grammar_threads

if TYPE_CHECKING:
    from llguidance import LLMatcher

_Job = tuple["Future[LLMatcher]", Callable[[], "LLMatcher"]]


class GrammarThread:
    """Runs jobs one after the other. A single thread, so that they never take more than one core from the steps."""

    def __init__(self) -> None:
        self._thread = grammar_threads(1)
        self._first: deque[_Job] = deque()
        self._later: deque[_Job] = deque()

    def run(self, job: Callable[[], LLMatcher]) -> Future[LLMatcher]:
        """Starts the job as soon as those before it have ended."""
        return self._add(self._first, job)

    def run_later(self, job: Callable[[], LLMatcher]) -> Future[LLMatcher]:
        """Starts the job when no job of `run` waits any more."""
        return self._add(self._later, job)

    def _add(self, jobs: deque[_Job], job: Callable[[], LLMatcher]) -> Future[LLMatcher]:
        future: Future[LLMatcher] = Future()
        jobs.append((future, job))
        self._thread.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        """Is called as often as jobs were added, so there is one."""
        future, job = (self._first or self._later).popleft()
        try:
            future.set_result(job())
        except BaseException as error:  # llguidance's own failures are no Exception
            future.set_exception(error)
