"""What to believe of the answers of Redis. Pure decisions, without a clock or a socket.

A part that is listed is believed at once. That a known part is missing is believed only after a full lease of unbroken
contact with one generation of the data, because then every part that runs had the time to register. Until then, the
last known parts stay, marked as stale. Contact is broken by

- a question without an answer, and a long time without a question (the process was stopped);
- a new generation: Redis was restarted empty, or its data is lost;
- a clock of Redis that has jumped, as after a failover to a host with another time: leases then end too early.

That Redis knows no part of a kind is never believed, only that it knows none of one model. Parts that are gone cost a
retry now and then; parts that are forgotten by mistake cost requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.discovery.parts import Part, Parts

# Contact counts as broken after this fraction of a lease without an answer, or if Redis' clock and the process' own
# differ by more over one pause. Parts renew their leases so often that this much less time ends no lease.
TOLERANCE = 0.5
# Maximum number of missing parts that stay known, besides as many as the longest list so far. If Redis is away again
# and again while addresses change, the number of missing parts would grow without a limit.
MAX_MISSING = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of Redis. `parts`: None if the version is the one that was known before; the other fields then do not
    count. `is_empty`: whether Redis knows no part of the kind, of any model."""

    redis_seconds: float
    parts: Mapping[str, Part] | None
    version: str = ""
    is_empty: bool = True


@dataclass(frozen=True, slots=True)
class Belief:
    parts: Parts = field(default_factory=lambda: Parts({}, is_stale=True))
    # The last listing, its version, and whether Redis then knew no part of the kind.
    listed: Mapping[str, Part] = field(default_factory=dict)
    version: str = ""
    is_empty: bool = True
    # Both clocks at the last answer; None if contact is broken.
    answered_at: float | None = None
    redis_seconds: float = 0.0
    # Start of the unbroken contact.
    contact_since: float = 0.0
    # Number of parts in the longest list so far.
    longest: int = 0

    def after(self, answer: Answer, now: float, lease_seconds: float) -> Belief:
        """Returns what to believe after an answer that has arrived at `now` (monotonic, in seconds)."""
        listed, version, is_empty = self.listed, self.version, self.is_empty
        if answer.parts is not None:
            listed, version, is_empty = answer.parts, answer.version, answer.is_empty
        is_unbroken = (
            self.answered_at is not None
            and _generation(version) == _generation(self.version)
            and now - self.answered_at <= TOLERANCE * lease_seconds
            and abs((answer.redis_seconds - self.redis_seconds) - (now - self.answered_at)) <= TOLERANCE * lease_seconds
        )
        contact_since = self.contact_since if is_unbroken else now
        known = self.parts.by_address
        is_believed = now - contact_since >= lease_seconds and (not is_empty or not known)
        longest = max(self.longest, len(listed))
        if is_believed:
            parts = Parts(dict(listed))
        else:
            missing = [item for item in known.items() if item[0] not in listed][-MAX_MISSING - longest :]
            parts = Parts(dict(missing) | dict(listed), is_stale=True)
        return Belief(parts, listed, version, is_empty, now, answer.redis_seconds, contact_since, longest)

    def after_silence(self) -> Belief:
        """Returns what to believe after a question that Redis has not answered."""
        return replace(self, parts=Parts(self.parts.by_address, is_stale=True), answered_at=None)


def _generation(version: str) -> str:
    return version.partition(".")[0]
