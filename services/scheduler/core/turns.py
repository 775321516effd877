"""Turns: in which order sequences start, so that one request of hundreds, or of a very long prompt, does not keep the
others waiting.

A sequence starts in the order of arrival, as if it had come some steps later: a few where its request has asked for
little so far, some thousand where it has asked for much. So whatever others have asked for, a short request starts
next; equal ones start as they came; and large ones end one after the other instead of all at the end. Nothing waits for
good: a turn never changes, and after those steps nobody who comes gets an earlier one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# Work is counted in so many tokens of prompts; a sequence counts as so many more, for its place among those that run.
_UNIT = 256
# What a request asks for is small work up to here, and for each unit of it comes so many steps later.
_SMALL_UNITS = 16
_STEPS_OF_A_UNIT = 16
# The rest is large work, and comes so many steps later: some minutes.
_LARGE_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """Of a sequence. The one with the lower step comes first."""

    step: int
    # Of its request, no other was there when it came.
    is_first: bool


FIRST_TURN = Turn(0, True)


@dataclass(slots=True)
class _Share:
    """What a request has asked for, since it had no sequence here."""

    num_sequences: int = 0
    num_tokens: int = 0


class Turns:
    """Counts what each request has asked for. Constant time."""

    def __init__(self) -> None:
        self._shares: dict[Hashable, _Share] = {}
        self._num_steps = 0

    def step(self) -> None:
        """One more is planned."""
        self._num_steps += 1

    def join(self, request: Hashable, num_tokens: int) -> Turn:
        """Of the request's next sequence, which computes so many tokens before the first that it samples."""
        share = self._shares.get(request)
        is_first = share is None
        if share is None:
            share = self._shares[request] = _Share()
        share.num_sequences += 1
        share.num_tokens += num_tokens + _UNIT
        num_units = share.num_tokens // _UNIT
        delay = num_units * _STEPS_OF_A_UNIT if num_units <= _SMALL_UNITS else _LARGE_STEPS
        return Turn(self._num_steps + delay, is_first)

    def leave(self, request: Hashable) -> None:
        """One of its sequences has ended."""
        share = self._shares[request]
        share.num_sequences -= 1
        if not share.num_sequences:
            del self._shares[request]
