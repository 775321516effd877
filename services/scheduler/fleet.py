"""What the engines of one scheduler share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import SchedulerConfig
from .served_model import ServedModel
from .spans import SequenceSpans

if TYPE_CHECKING:
    from .engine import Engine


@dataclass(slots=True)
class Fleet:
    scheduler_id: str
    config: SchedulerConfig
    model: ServedModel = field(default_factory=ServedModel)
    spans: SequenceSpans = field(default_factory=SequenceSpans)
    engines: list[Engine] = field(default_factory=list)

    def least_loaded(self) -> Engine | None:
        """Of the engines with a worker; where all workers are lost, of those whose worker may come back. None if
        there never was one.
        """
        engines = [engine for engine in self.engines if engine.core is not None]
        if not engines:
            return None
        return min(engines, key=lambda engine: (not engine.ready.is_set(), engine.num_unfinished))
