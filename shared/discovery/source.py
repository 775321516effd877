"""What every source of discovery does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from shared.discovery.parts import Parts


class Source(Protocol):
    """Knows the parts of one kind."""

    def watch(self) -> AsyncIterator[Parts]:
        """Yields all known parts at first, and again after each change; never ends by itself. Each yielded value
        replaces the one before. A source that cannot be asked yields the last known parts, marked as stale, and does
        not raise: what a missing part means is decided by the streams to it."""


class TimedSource(Source, Protocol):
    """A source that tells how old its knowledge is."""

    def seconds_since_answer(self) -> float:
        """Returns the seconds since the last answer; since the start if there was none."""
