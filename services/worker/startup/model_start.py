"""How a model of one kind is started, and what all kinds are started with."""

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
    """What a model is loaded with, whatever its kind."""

    config: WorkerConfig
    path: Path  # a checkpoint's directory, or a GGUF file
    device: Device
    pooling: PoolingConfig
    grammars: Grammars
    swap: SwapSpace
    report: Report


class ModelStart(Protocol):
    """What a start asks of a kind of model: a decoder (`decoder.py`) or an encoder (`encoder.py`)."""

    @property
    def model(self) -> ModelConfig | EncoderConfig: ...

    @property
    def default_pooling(self) -> PoolingKind:
        """How it is pooled where neither its files nor the options say."""
        ...

    @property
    def probe(self) -> Probe:
        """Of the steps that are timed."""
        ...

    def check_pooling(self, kind: PoolingKind) -> None:
        """Raises ModelError for a kind that says nothing of a text."""
        ...

    def load(self, setting: Setting) -> tuple[ModelRunner, float]:
        """The runner, and the seconds that copying a block to the host takes: 0 where nothing is copied. Raises
        ModelError."""
        ...

    def describe_capacity(self, limits: Limits) -> str:
        """For the log."""
        ...
