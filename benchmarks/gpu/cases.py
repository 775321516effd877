"""Cases: pieces of work on the GPU that run one after the other in a child process, and may fail one by one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from benchmarks.gpu.figures import Figure

# What a case brings: its largest relative error, figures one by one, or nothing but the fact that it ran.
Found = float | Iterable[Figure] | None
Status = Literal["ok", "failed", "skipped", "not run"]


class SkippedError(Exception):
    """A case cannot run on this machine. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Case:
    """Raises an exception if it fails."""

    name: str
    run: Callable[[], Found]


@dataclass(frozen=True, slots=True)
class Setting:
    """What every case of a command is built for. It travels to the child processes."""

    form: str | None = None  # of the weights, by its name in `FORMS`; None: the cases name their own
    dry_run: bool = False  # tiny shapes on the simulated GPU


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a child process, and with it an engine or the compiler's warm state."""

    module: str  # which has `cases(setting) -> Mapping[str, Callable[[], Iterable[Case]]]`
    name: str  # a key of that mapping
    limit_s: float  # of each case

    def load(self, setting: Setting) -> list[Case]:
        """To be called in the child, as this may import and allocate."""
        module: CaseModule = importlib.import_module(self.module)
        return list(module.cases(setting)[self.name]())


class CaseModule(Protocol):
    def cases(self, setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
        """By group. Nothing is built before a group is called."""
        ...


@dataclass(slots=True)
class Result:
    """What became of one case."""

    group: str
    case: str
    status: Status
    seconds: float = 0.0
    error: float | None = None  # the largest relative error, where the case has an oracle
    problem: str = ""  # one line
    traceback: str = ""
    figures: list[Figure] = field(default_factory=list)

    def record(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"figures": [figure.record() for figure in self.figures]}
