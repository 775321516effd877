"""Judges whether a worker makes progress, by how long its steps should take.

If a worker's process ends, the kernel closes its stream, and the group notices at once. A worker that is stopped, cut
off or hung only sends nothing. It is given up some time after the results of its plans in flight were expected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequences
from typing import Generic, NamedTuple, Protocol, TypeVar

from services.scheduler.core import RequestT, StepPlan

# A worker is late if it sends no result for this many times the expected duration of its steps in flight.
_FACTOR = 5.0
# Least seconds for a step of a kind that the worker's process has not run yet for this scheduler. Its time is hard to
# predict: the device may compile kernels for it, or touch memory for the first time. A worker that has run steps before
# it served has done nearly all of that.
_FIRST_OF_A_KIND_S, _FIRST_AFTER_WARM_UP_S = 30.0, 5.0
# A group is slow after this part of the time after which it is late.
SLOW = 0.5
# Each time that a worker is given up before it has sent another result, it gets this many times longer, up to _LONGEST
# times. Otherwise the same step would be started and given up for ever on a machine that has become slow.
_GROWTH = 2.0
_LONGEST = 64.0
# Minimum number of seconds between two workers that are given up.
_PAUSE_S = 10.0
# Seconds between two offers of the sequences of silent groups.
_OFFER_S = 1.0
# A group that is silent for this many seconds after it became late is given up, whatever other groups do.
_CERTAIN_S = 30.0

Kind = tuple[int, bool, bool, bool]
# The kind of a plan that only ends sequences. It is not hard to predict, even for the first time.
_NOTHING_TO_COMPUTE: Kind = (0, False, False, False)


class Patience:
    """How long the plans in flight of one worker may take."""

    def __init__(self, least_s: float) -> None:
        """`least_s`: a worker is not late before this many seconds without a result."""
        self._least_s = least_s
        self._in_flight: deque[tuple[Kind, float]] = deque()
        self._known: set[Kind] = set()
        self._boot_id = 0
        self._first_of_a_kind_s = _FIRST_OF_A_KIND_S
        self._times_longer = 1.0

    def begin(self, boot_id: int, *, is_warm: bool) -> None:
        """Takes note that a worker was claimed. `boot_id`: of the worker's process. `is_warm`: whether it has run steps
        before it served."""
        self._first_of_a_kind_s = _FIRST_AFTER_WARM_UP_S if is_warm else _FIRST_OF_A_KIND_S
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self._known.clear()

    def sent(self, plan: StepPlan[RequestT], seconds: float) -> None:
        """Takes note that a plan is sent. `seconds`: expected duration of its step, copies of blocks included."""
        self._in_flight.append((_kind(plan), seconds))

    def answered(self) -> None:
        """Takes note that the result of the oldest plan in flight came."""
        self._known.add(self._in_flight.popleft()[0])
        self._times_longer = 1.0

    def gave_up(self) -> None:
        """Takes note that the worker was given up, so that it gets more time if it is claimed again."""
        self._times_longer = min(self._times_longer * _GROWTH, _LONGEST)

    def lost(self) -> None:
        self._in_flight.clear()

    @property
    def seconds(self) -> float:
        """Seconds without a result after which the worker is late; meaningful only if plans are in flight."""
        is_first = any(kind not in self._known and kind != _NOTHING_TO_COMPUTE for kind, _ in self._in_flight)
        least_s = max(self._least_s, self._first_of_a_kind_s) if is_first else self._least_s
        return self._times_longer * max(least_s, _FACTOR * sum(seconds for _, seconds in self._in_flight))


class Watched(Protocol):
    """What the overseer reads of a worker group."""

    @property
    def silence(self) -> float:
        """Time without a result, in units of the time after which the group is late. 0 if no plan is in flight."""

    @property
    def late_s(self) -> float:
        """Seconds for which the group has been late; 0 if it is not."""


WatchedT = TypeVar("WatchedT", bound=Watched)


class Offer(NamedTuple, Generic[WatchedT]):
    """The sequences of a stranded group. `asks_peers`: whether other groups of the scheduler should take them, and not
    only other schedulers."""

    group: WatchedT
    asks_peers: bool


class Overseer:
    """Decides which of a scheduler's groups is given up, and whose sequences go elsewhere although it is not.

    If more than one group sends nothing, the scheduler suspects itself: its own event loop or network may be the cause.
    Then it gives up none of them, unless they stay silent for much longer. Otherwise it gives up one worker at a time,
    because each costs the blocks of all its sequences. The sequences of a late group that is not given up are stranded.
    Other schedulers should run them, or other groups of this one.
    """

    def __init__(self) -> None:
        self.suspects_itself = False
        self._not_before = float("-inf")
        # When the sequences of a stranded group are offered again, by the group's id().
        self._next_offers: dict[int, float] = {}

    def judge(self, now: float, groups: Sequences[WatchedT]) -> tuple[WatchedT | None, list[Offer[WatchedT]]]:
        """Returns the group to give up at `now`, if any, and what to offer. A group's sequences are offered as soon as
        it is late, and again after a while, because it may be that nobody could take them before."""
        slow = [group for group in groups if group.silence > SLOW]
        late = [group for group in slow if group.silence > 1.0]
        self.suspects_itself = len(slow) > 1 and bool(late)
        hopeless = [group for group in late if group.late_s > _CERTAIN_S] if self.suspects_itself else late
        given_up = None
        if hopeless and now >= self._not_before:
            self._not_before = now + _PAUSE_S
            given_up = max(hopeless, key=lambda group: group.silence)
        return given_up, self._offers(now, [group for group in late if group is not given_up])

    def _offers(self, now: float, stranded: list[WatchedT]) -> list[Offer[WatchedT]]:
        due = [group for group in stranded if now >= self._next_offers.get(id(group), now)]
        # If the scheduler itself is the cause, its other groups are no better. They are asked after other schedulers.
        offers = [Offer(group, not self.suspects_itself or id(group) in self._next_offers) for group in due]
        self._next_offers = {id(group): self._next_offers.get(id(group), now) for group in stranded}
        self._next_offers |= {id(group): now + _OFFER_S for group in due}
        return offers


def _kind(plan: StepPlan[RequestT]) -> Kind:
    """Plans of one kind run the same code, on arrays of similar sizes."""
    is_pooled = any(new.sequence.request.work.gives_vector for new in plan.new_sequences)
    copies = bool(plan.moves.swap_in or plan.moves.swap_out)
    return plan.num_tokens.bit_length(), plan.num_prompt_logprobs > 0, is_pooled, copies
