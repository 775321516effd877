"""What to believe of the answers of Redis. Pure decisions, without a clock or a socket.

A part that is listed is believed at once. That a known part is missing is believed only after a full lease of unbroken
contact with one generation of the data, because then every part that runs had the time to register. Until then, the
last known parts stay, marked as stale. Contact is broken by

- a question without an answer, and a long time without a question (the process was stopped);
- a new generation: Redis was restarted empty, or its data is lost;
- a clock of Redis that has jumped, as after a failover to a host with another time: leases then end too early.

That Redis knows no part at all is never believed. (Parts of one model can all be missing while there are others.) Parts
that are gone cost a retry now and then; parts that are forgotten
by mistake cost requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.discovery.parts import Part, Parts

# Contact counts as broken after this fraction of a lease without an answer, or if Redis' clock and the process' own
# differ by more over one pause. Parts renew their leases so often that this much less time ends no lease.
TOLERANCE = 0.5
# Maximum number of missing parts that stay known. If Redis is away again and again while addresses change, the number
# of missing parts would grow without a limit.
MAX_MISSING = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of Redis. `parts`: None if the version is the one that was known before. `is_empty`: whether Redis
    knows no part of the kind, of any model; None: as `parts` says."""

    redis_seconds: float
    parts: Mapping[str, Part] | None
    version: str = ""
    is_empty: bool | None = None


@dataclass(frozen=True, slots=True)
class Belief:
    parts: Parts = field(default_factory=lambda: Parts({}, is_stale=True))
    # The last listing, and its version.
    listed: Mapping[str, Part] = field(default_factory=dict)
    version: str = ""
    is_empty: bool = True
    # Both clocks at the last answer; None if contact is broken.
    answered_at: float | None = None
    redis_seconds: float = 0.0
    # Start of the unbroken contact.
    contact_since: float = 0.0

    def after(self, answer: Answer, now: float, lease_seconds: float) -> Belief:
        """Returns what to believe after an answer that has arrived at `now` (monotonic, in seconds)."""
        listed = self.listed if answer.parts is None else answer.parts
        version = self.version if answer.parts is None else answer.version
        is_unbroken = (
            self.answered_at is not None
            and _generation(version) == _generation(self.version)
            and now - self.answered_at <= TOLERANCE * lease_seconds
            and abs((answer.redis_seconds - self.redis_seconds) - (now - self.answered_at)) <= TOLERANCE * lease_seconds
        )
        contact_since = self.contact_since if is_unbroken else now
        known = self.parts.by_address
        is_empty = self.is_empty if answer.parts is None else answer.is_empty
        if is_empty is None:
            is_empty = not listed
        is_believed = now - contact_since >= lease_seconds and (not is_empty or not known)
        if is_believed:
            parts = Parts(dict(listed))
        else:
            missing = [item for item in known.items() if item[0] not in listed][-MAX_MISSING:]
            parts = Parts(dict(missing) | dict(listed), is_stale=True)
        return Belief(parts, listed, version, is_empty, now, answer.redis_seconds, contact_since)

    def after_silence(self) -> Belief:
        """Returns what to believe after a question that Redis has not answered."""
        return replace(self, parts=Parts(self.parts.by_address, is_stale=True), answered_at=None)


def _generation(version: str) -> str:
    return version.partition(".")[0]
