"""Where the model's files are: the one that comes with Quire, a directory, or the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.progress import Progress

BUNDLED = "quire-chat"
# Weights in one format only, and everything a configuration or tokenizer may be kept in.
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    directory: Path
    names: tuple[str, ...]  # what requests call the model; the first is its name, the others are aliases


def find_checkpoint(
    config: WorkerConfig, progress: Progress = lambda _: None, patterns: Sequence[str] = _HUB_PATTERNS
) -> Checkpoint:
    """Downloads files that match `patterns`, if need be; `progress` is told the fraction that has come. Raises
    ModelError, with a sentence, if there is no such model."""
    if not config.model:
        directory = Path(str(resources.files("quire"))) / "models" / BUNDLED
        if not directory.is_dir():
            raise ModelError(f"the bundled model is missing from this installation ({directory}); name a model instead")
        return Checkpoint(directory, config.served_model_name or (BUNDLED,))
    directory = Path(config.model).expanduser()
    if directory.is_dir():
        return Checkpoint(directory, config.served_model_name or (directory.resolve().name, config.model))
    if directory.is_absolute() or config.model.startswith(("./", "../")):
        raise ModelError(f"there is no directory {config.model}")
    from services.worker.hub import download

    directory = download(config.model, config.revision or None, patterns, progress)
    return Checkpoint(directory, config.served_model_name or (config.model,))
