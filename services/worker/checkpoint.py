"""Where the model's files are: the one that comes with Quire, a directory, or the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError

BUNDLED = "quire-chat"
# Weights in one format only, and everything a configuration or tokenizer may be kept in.
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    directory: Path
    names: tuple[str, ...]  # what requests call the model; the first is its name, the others are aliases


def find_checkpoint(config: WorkerConfig, patterns: Sequence[str] = _HUB_PATTERNS) -> Checkpoint:
    """Downloads files that match `patterns`, if need be. Raises ModelError, with a sentence, if there is no such
    model."""
    if not config.model:
        directory = Path(str(resources.files("quire"))) / "models" / BUNDLED
        if not directory.is_dir():
            raise ModelError(f"the bundled model is missing from this installation ({directory}); name a model instead")
        return Checkpoint(directory, config.served_model_name or (BUNDLED,))
    directory = Path(config.model).expanduser()
    if directory.is_dir():
        return Checkpoint(directory, config.served_model_name or (directory.resolve().name, config.model))
    return Checkpoint(_download(config, patterns), config.served_model_name or (config.model,))


def _download(config: WorkerConfig, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    name = config.model
    if Path(name).is_absolute() or name.startswith(("./", "../", "~")):
        raise ModelError(f"there is no directory {name}")
    try:
        return Path(snapshot_download(name, revision=config.revision or None, allow_patterns=list(patterns)))
    except HFValidationError as error:
        raise ModelError(f"{name} is neither a directory nor the name of a model on the Hugging Face hub") from error
    except GatedRepoError as error:
        raise ModelError(f"{name} is gated on the Hugging Face hub: ask for access there, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name} is no directory, and the Hugging Face hub has no such model (private? set HF_TOKEN)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name} is no directory, and the Hugging Face hub cannot be reached to download it"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{name} is no directory, and downloading it from the Hugging Face hub failed: {error}"
        ) from error
