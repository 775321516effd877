"""What clients were answered: how many requests of each kind, and the faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Examples of faults that are kept; the others are only counted.
MAX_EXAMPLES = 20


@dataclass(slots=True)
class Tally:
    # Answered as they should be, by the request's name.
    answered: Counter[str] = field(default_factory=Counter)
    # Rows of the abuse that were answered, by the row's name.
    rows: Counter[str] = field(default_factory=Counter)
    # Names of the rows that were sent, whatever the answer.
    sent: set[str] = field(default_factory=set)
    # Times that the server had no place, and said when to come back.
    num_busy: int = 0
    # Answers that were compared with the first one of the same request.
    num_compared: int = 0
    # By the name of the request or row.
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    # The first answer of each request, by its key.
    _first: dict[str, str] = field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        """That have ended, rows and faults included."""
        return self.answered.total() + self.rows.total() + self.faults.total()

    def fault(self, name: str, what: str) -> None:
        self.faults[name] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{name}: {what}")

    def answer(self, name: str, key: str | None, said: str) -> None:
        """Counts an answer, and compares it where the request has a key."""
        if key is not None:
            first = self._first.setdefault(key, said)
            self.num_compared += 1
            if said != first:
                self.fault(name, f"{said[:120]} in place of {first[:120]} to {key[:200]}")
                return
        self.answered[name] += 1
