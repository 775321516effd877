"""Counts answered requests by kind, and faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Maximum number of faults kept as examples. All others are only counted.
MAX_EXAMPLES = 20


@dataclass(slots=True)
class Tally:
    # Correctly answered requests, by the request's name.
    answered: Counter[str] = field(default_factory=Counter)
    # Correctly answered rows of the abuse, by the row's name.
    rows: Counter[str] = field(default_factory=Counter)
    # Names of all rows that were sent.
    sent: set[str] = field(default_factory=set)
    # Number of times that the server was busy and asked for a retry.
    num_busy: int = 0
    # Number of answers that were compared with the first one of the same request.
    num_compared: int = 0
    # Faults by the name of the request or row.
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    # The first answer of each request, by its key.
    _first: dict[str, str] = field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        """Number of requests that have ended, rows and faults included."""
        return self.answered.total() + self.rows.total() + self.faults.total()

    def fault(self, name: str, what: str) -> None:
        self.faults[name] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{name}: {what}")

    def answer(self, name: str, key: str | None, said: str) -> None:
        """Counts an answer, and compares it with the first one if the request has a key."""
        if key is not None:
            first = self._first.setdefault(key, said)
            self.num_compared += 1
            if said != first:
                self.fault(name, f"{said[:120]} instead of {first[:120]} for request {key[:200]}")
                return
        self.answered[name] += 1
