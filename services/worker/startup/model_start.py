"""The interface of a model's start, and the parameters that every kind of model takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.worker.architectures import EncoderConfig, ModelConfig
from services.worker.config import WorkerConfig
from services.worker.pages import SwapSpace
from services.worker.plan import Limits
from services.worker.pooling import PoolingConfig, PoolingKind
from services.worker.progress import Report
from services.worker.sampling import Grammars
from services.worker.startup.speed import Probe
from services.worker.step import Device, ModelRunner


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameters for loading a model of any kind."""

    config: WorkerConfig
    path: Path  # a checkpoint's directory, or a GGUF file
    device: Device
    pooling: PoolingConfig
    grammars: Grammars
    swap: SwapSpace
    report: Report


class ModelStart(Protocol):
    """Start of one kind of model: a decoder (`decoder.py`) or an encoder (`encoder.py`)."""

    @property
    def model(self) -> ModelConfig | EncoderConfig: ...

    @property
    def default_pooling(self) -> PoolingKind:
        """Pooling to use if neither the model's files nor the options name a kind."""
        ...

    @property
    def probe(self) -> Probe:
        """The prompt whose steps are timed."""
        ...

    def check_pooling(self, kind: PoolingKind) -> None:
        """Raises ModelError if this pooling is meaningless for the model."""
        ...

    def load(self, setting: Setting) -> tuple[ModelRunner, float]:
        """Returns the runner, and the seconds to copy one block to the host (0 if nothing is ever copied). Raises
        ModelError."""
        ...

    def describe_capacity(self, limits: Limits) -> str:
        """Returns a description for the log."""
        ...
