"""Decides whether and when a failed call is retried. The clients that use this module never retry a stream after they
have yielded its first output."""

from __future__ import annotations

import random
import time

import grpc

from quire.client.errors import QuireError

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 8.0
_RETRIED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


class Retries:
    """The retries of one call, with exponential backoff."""

    def __init__(self, max_retries: int, timeout: float | None) -> None:
        """`timeout`: seconds for all attempts together; None: no limit."""
        self._left = max_retries
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._delay = _FIRST_DELAY_SECONDS

    def timeout(self) -> float | None:
        """Returns the seconds left for the next attempt; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def delay(self, error: QuireError) -> float:
        """Returns the seconds to wait before the next attempt. Raises `error` if the call must not be retried."""
        if error.status not in _RETRIED or error.is_final or not self._left:
            raise error
        self._left -= 1
        # Choose a random delay from half of `_delay` to all of it. So clients that were refused at the same time retry
        # at different times.
        delay = self._delay * random.uniform(0.5, 1.0)
        self._delay = min(2 * self._delay, _LONGEST_DELAY_SECONDS)
        if error.retry_after is not None:
            delay = max(delay, min(error.retry_after, _LONGEST_DELAY_SECONDS))
        left = self.timeout()
        if left is not None and delay >= left:
            raise error
        return delay
