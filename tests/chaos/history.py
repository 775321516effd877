"""The history of a run: every call of a client, every fault, and every exit of a part. Stored as lines of JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

# ended: the answer came to its end, an answer with an error status included. left: the client went away, as it meant
# to. cut: the connection broke, or was never made. hung: no end before the client's deadline.
Outcome = Literal["ended", "left", "cut", "hung"]
# calm: before the first fault. storm: while faults are carried out. after: when all of them are over.
Phase = Literal["calm", "storm", "after"]


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of an answer. `at`: seconds since the run's start. `data`: one event of a stream, or a whole body."""

    at: float
    data: str


@dataclass(frozen=True, slots=True)
class Call:
    """One request and everything that the client received. Times are seconds since the run's start."""

    # Unique in the run; also the x-request-id of the request.
    id: str
    # Name of the request in the catalog. Calls of the same request must get the same answer.
    request: str
    # The gateway that it was sent to.
    gateway: str
    phase: Phase
    start: float
    end: float
    outcome: Outcome
    # HTTP status, or that of the error over gRPC as HTTP. 0: none was received.
    status: int
    # Seconds of Retry-After; None: the answer has none.
    retry_after: float | None
    # Why the call was cut or refused, for people.
    detail: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was carried out. `targets`: names of parts and links. `end`: when its cause was over: the part
    started again or continued, the link was whole again. The fleet can need longer to recover. `was_last_release`:
    whether it ended a part that ran the last release."""

    kind: str
    targets: tuple[str, ...]
    start: float
    end: float
    was_last_release: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A fault that this machine cannot carry out."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a part's process. `was_meant`: whether the nemesis or the end of the run caused it."""

    part: str
    at: float
    was_meant: bool
    # Exit status, or the signal, or the last lines of its log.
    how: str


@dataclass(frozen=True, slots=True)
class Served:
    """The router that answered a call, according to the gateway's access log."""

    id: str
    router: str


Record = Call | Fault | Skipped | Exit | Served
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (Fault, Skipped, Exit, Served)}


class Recorder:
    """Writes records to a compressed file as they are made, so that a run that breaks keeps its history."""

    def __init__(self, path: Path) -> None:
        self._file = gzip.open(path, "wt", compresslevel=1, encoding="utf-8")  # noqa: SIM115 - __exit__ closes it

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        self._file.write(json.dumps({"record": type(record).__name__, **asdict(record)}) + "\n")


def read(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from parse(file)


def parse(lines: Iterable[str]) -> Iterator[Record]:
    for line in lines:
        fields = json.loads(line)
        kind = fields.pop("record")
        if kind == "Call":
            yield Call(**fields | {"events": tuple(Event(**event) for event in fields["events"])})
        else:
            for name, value in fields.items():
                fields[name] = tuple(value) if isinstance(value, list) else value
            yield _KINDS[kind](**fields)
