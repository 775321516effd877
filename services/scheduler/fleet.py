"""What the engines of one scheduler share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import SchedulerConfig
from .served_model import ServedModel
from .spans import SequenceSpans

if TYPE_CHECKING:
    from .core.sequence import Sequence
    from .engine import Engine
    from .submission import RoutedRequest


@dataclass(slots=True)
class Fleet:
    scheduler_id: str
    config: SchedulerConfig
    model: ServedModel = field(default_factory=ServedModel)
    spans: SequenceSpans = field(default_factory=SequenceSpans)
    engines: list[Engine] = field(default_factory=list)

    def least_loaded(self) -> Engine | None:
        """Of the engines with a worker. If all workers are lost, the engine that lost its worker last: its sequences
        wait longest before they fail. None if there never was a worker.
        """
        engines = [engine for engine in self.engines if engine.core is not None]
        ready = [engine for engine in engines if engine.ready.is_set()]
        if ready:
            return min(ready, key=lambda engine: engine.num_unfinished)
        return min(engines, key=lambda engine: engine.silent_s, default=None)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that a group takes. Only once a group was claimed."""
        groups = [engine.core.config.max_model_len for engine in self.engines if engine.core is not None]
        return max(groups, default=self.model.info.max_model_len)

    def drain_lost(self, but: Engine) -> list[Sequence[RoutedRequest]]:
        """Removes and returns the sequences that wait for lost workers of other engines than `but` to come back, except
        those that do not fit the context of `but`."""
        others = [engine for engine in self.engines if engine is not but and not engine.ready.is_set()]
        return [sequence for engine in others if engine.core is not None for sequence in engine.core.drain(but.core)]
