"""Cases: pieces of work on the GPU that run one after the other in a child process. Each can fail on its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from benchmarks.gpu.figures import Figure

# Result of a case: its largest relative error, an iterator of figures, or None.
Found = float | Iterable[Figure] | None
Status = Literal["ok", "failed", "skipped", "not run"]


class SkippedError(Exception):
    """A case cannot run on this machine. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `run` raises an exception if the case fails."""

    name: str
    run: Callable[[], Found]


@dataclass(frozen=True, slots=True)
class Setting:
    """Options that all cases of a command share. It is sent to the child processes."""

    form: str | None = None  # format of the weights, a key of `FORMS`; None: each case has its own
    dry_run: bool = False  # tiny shapes on the simulated GPU


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a child process, and so an engine or compiled kernels."""

    module: str  # implements `CaseModule`
    name: str  # a key of that mapping
    limit_s: float  # timeout per case, in seconds

    def load(self, setting: Setting) -> list[Case]:
        """Builds the cases. Must be called in the child process, because it may import modules and allocate memory."""
        module: CaseModule = importlib.import_module(self.module)
        return list(module.cases(setting)[self.name]())


class CaseModule(Protocol):
    def cases(self, setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
        """Returns a function per group that builds the group's cases when it is called."""
        ...


@dataclass(slots=True)
class Result:
    """The result of one case."""

    group: str
    case: str
    status: Status
    seconds: float = 0.0
    error: float | None = None  # the largest relative error, if the case has an oracle
    problem: str = ""  # one line
    traceback: str = ""
    figures: list[Figure] = field(default_factory=list)

    def record(self) -> dict[str, object]:
        """Returns the fields for JSON."""
        return asdict(self) | {"figures": [figure.record() for figure in self.figures]}
