"""Turns: in which order sequences start, so that one request of hundreds, or of a very long prompt, does not keep the
others waiting.

A sequence starts in the order of arrival, as if it had come some steps later: the more steps, the more its request has
asked for before. So whatever others have asked for, a short request starts next; equal ones start as they came; and the
most of large ones end one after the other instead of all at the end. Nothing waits for good: after those steps nobody
who comes gets an earlier turn. Whoever has started once is not put off again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# Work is counted in so many tokens of prompts; a sequence counts as one more unit, for its place in the batch.
_UNIT = 256
# A request's first unit is put off by so many steps, its second by twice as many, the next two by four times as many,
# and so on up to some minutes. Between two powers of two it is by arrival.
_STEPS_OF_A_UNIT = 16
_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """A sequence's place in the queue."""

    # The number of the step before which it came, plus those by which it is put off. The lower starts first.
    step: int
    # It is the first sequence of its request: no other of that request was here when it came.
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
        self.num_steps = 0

    def is_known(self, request: Hashable) -> bool:
        """Whether it has a sequence here."""
        return request in self._shares

    def num_sequences(self, request: Hashable) -> int:
        """How many sequences it has here."""
        return self._shares[request].num_sequences if request in self._shares else 0

    def join(self, request: Hashable, num_tokens: int, *, is_put_off: bool = True) -> Turn:
        """Of the request's next sequence, which has so many tokens of its own to compute before it samples one."""
        is_first = request not in self._shares
        share = self._shares.setdefault(request, _Share())
        share.num_sequences += 1
        share.num_tokens += num_tokens + _UNIT
        if not is_put_off:
            return Turn(self.num_steps, is_first)
        num_units = share.num_tokens // _UNIT
        delay = min(_STEPS_OF_A_UNIT << (num_units - 1).bit_length(), _MOST_STEPS)
        return Turn(self.num_steps + delay, is_first)

    def leave(self, request: Hashable) -> None:
        """One of its sequences has ended."""
        share = self._shares[request]
        share.num_sequences -= 1
        if not share.num_sequences:
            del self._shares[request]
