"""Turns: the order in which sequences start.

One request for hundreds of sequences, or with a very long prompt, must not keep the others waiting. So sequences start
in the order of arrival, but each counts as if it had arrived some steps later. The delay grows with the work that its
request has asked for before. A short request starts soon whatever others have asked for, equal requests start in the
order of arrival, and most of the large ones end one after the other instead of all at the end. No sequence starves:
after its delay, no later arrival gets an earlier turn. A sequence that has started once is not delayed again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# Number of prompt tokens in one unit of work. Each sequence counts as one more unit, for its place in the batch.
_UNIT = 256
# A request's first unit is delayed by _STEPS_OF_A_UNIT steps, its second by twice as many, the next two by four times
# as many, and so on up to _MOST_STEPS, which take some minutes. Units between two powers of two have the same delay, so
# arrival decides.
_STEPS_OF_A_UNIT = 16
_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """A sequence's place in the queue."""

    # Number of the step before which it arrived, plus its delay in steps. The sequence with the lower number starts
    # first.
    step: int
    # Whether its request had no other unfinished sequence when it arrived.
    is_first: bool


FIRST_TURN = Turn(0, True)


@dataclass(slots=True)
class _Share:
    """The work that a request has asked for since it last had no unfinished sequence."""

    num_sequences: int = 0
    num_tokens: int = 0


class Turns:
    """Counts what each request has asked for. Constant time."""

    def __init__(self) -> None:
        self._shares: dict[Hashable, _Share] = {}
        self.num_steps = 0

    def is_known(self, request: Hashable) -> bool:
        """Whether the request has a sequence here."""
        return request in self._shares

    def num_sequences(self, request: Hashable) -> int:
        """Number of sequences that the request has here."""
        return self._shares[request].num_sequences if request in self._shares else 0

    def join(self, request: Hashable, num_tokens: int, *, is_put_off: bool = True) -> Turn:
        """Returns the turn of the request's next sequence, which computes `num_tokens` of its own before it samples."""
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
        """Takes note that one of the request's sequences has ended."""
        share = self._shares[request]
        share.num_sequences -= 1
        if not share.num_sequences:
            del self._shares[request]
