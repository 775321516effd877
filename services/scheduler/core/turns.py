"""Turns: the order in which sequences start.

A request for hundreds of sequences, or with a very long prompt, must not keep other requests waiting. So sequences
start in the order of arrival, but each counts as if it had arrived some steps later. The delay grows with the work that
the sequence's request has asked for so far. A short request starts soon, no matter how much work other requests have
asked for. Requests of equal size start in the order of arrival, so most large requests end one after the other, not all
at the same late time. No sequence starves: after its delay has passed, no new sequence gets an earlier turn. A sequence
that has started once is not delayed again, and a sequence that moves here from another scheduler keeps the time that it
has waited there.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# Number of prompt tokens in one unit of work. The work of a sequence is its prompt tokens plus one unit; the extra unit
# is the cost of its slot in the batch.
_UNIT = 256
# A sequence's delay, in steps, depends on the number of units that its request has asked for so far, including this
# sequence. The delay is _STEPS_OF_A_UNIT for one unit, twice as long for two, four times as long for 3 or 4, eight
# times as long for 5 to 8, and so on, but at most _MOST_STEPS (some minutes).
_STEPS_OF_A_UNIT = 16
_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """A sequence's place in the queue."""

    # Number of steps planned before the sequence arrived, plus its delay in steps. The sequence with the lowest sum
    # starts first.
    step: int
    # Whether the sequence's request had no other unfinished sequence when this one arrived.
    is_first: bool


FIRST_TURN = Turn(0, True)


@dataclass(slots=True)
class _Share:
    """The work that a request has asked for so far. It is forgotten when all sequences of the request have ended."""

    num_sequences: int = 0  # unfinished sequences
    num_tokens: int = 0  # prompt tokens that all its sequences had to compute, plus _UNIT for each sequence


class Turns:
    """Counts the work that each request has asked for. Every call takes constant time."""

    def __init__(self) -> None:
        self._shares: dict[Hashable, _Share] = {}
        self.num_steps = 0

    def is_known(self, request: Hashable) -> bool:
        """Whether the request has an unfinished sequence in this scheduler."""
        return request in self._shares

    def num_sequences(self, request: Hashable) -> int:
        """Number of unfinished sequences that the request has in this scheduler."""
        return self._shares[request].num_sequences if request in self._shares else 0

    def join(self, request: Hashable, num_tokens: int, *, delay: int | None = None) -> Turn:
        """Counts one more sequence of the request, and returns the sequence's turn. `num_tokens`: prompt tokens that no
        other choice computes for the sequence. `delay`: in steps; None: as long as the request's work asks for."""
        is_first = request not in self._shares
        share = self._shares.setdefault(request, _Share())
        share.num_sequences += 1
        share.num_tokens += num_tokens + _UNIT
        if delay is None:
            num_units = share.num_tokens // _UNIT
            delay = min(_STEPS_OF_A_UNIT << (num_units - 1).bit_length(), _MOST_STEPS)
        return Turn(self.num_steps + delay, is_first)

    def leave(self, request: Hashable) -> None:
        """Counts one sequence of the request less, because it has ended."""
        share = self._shares[request]
        share.num_sequences -= 1
        if not share.num_sequences:
            del self._shares[request]
