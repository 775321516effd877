"""Interface to load a model of any kind for serving, and the parameters for loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models import EncoderConfig, ModelConfig
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
    """Loads one kind of model: a decoder (`decoder.py`) or an encoder (`encoder.py`)."""

    @property
    def model(self) -> ModelConfig | EncoderConfig: ...

    @property
    def default_pooling(self) -> PoolingKind:
        """The kind of pooling to use if neither the model's files nor the options name one."""
        ...

    @property
    def probe(self) -> Probe:
        """Makes the prompts with which step times are measured."""
        ...

    def check_pooling(self, kind: PoolingKind) -> None:
        """Raises ModelError if this pooling is meaningless for the model."""
        ...

    def load(self, setting: Setting) -> tuple[ModelRunner, float]:
        """Loads the model. Returns its runner, and the seconds to copy one block to the host or back (0 without swap
        space). Raises ModelError."""
        ...

    def describe_capacity(self, limits: Limits) -> str:
        """Returns a description of the KV cache's size for the log."""
        ...


def check_classifier_pooling(kind: PoolingKind, trained_with: PoolingKind) -> None:
    """Raises ModelError if a classifier would get hidden states that are pooled in another way than in its
    training."""
    if kind is not trained_with:
        raise ModelError(
            f"--pooling-type or the model's files ask for {kind.value}, but this classifier was trained with "
            f"{trained_with.value}: use --pooling-type {trained_with.value}"
        )
