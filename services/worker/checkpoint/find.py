"""Finds the model's files: bundled with Quire, in a directory, or on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from services.worker.checkpoint.tokenizer_files import TokenizerFiles, read_tokenizer
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.implementations import IMPLEMENTATIONS, Implementation
from services.worker.models import (
    EncoderConfig,
    GenerationDefaults,
    ModelConfig,
    read_encoder_config,
    read_model_config,
)
from services.worker.pooling import EmbeddingPrompts, PoolingConfig, PoolingKind, read_pooling, read_prompts
from services.worker.progress import Progress

BUNDLED = "quire-chat"
# Files to download from the hub: weights only as safetensors, and every file that can hold a configuration or a
# tokenizer.
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
# Files on the hub that hold a model's configuration: enough for `read_config` and `read_encoder_config`.
CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "params.json",
    "hf_quant_config.json",
    "sentence_*_config.json",
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path  # a directory, or a GGUF file
    names: tuple[str, ...]  # names of the model in requests; the first is canonical, the others are aliases
    chat_template: str = ""  # value of --chat-template: a template, or the path of a template file
    implementation: Implementation = "auto"
    has_defaults: bool = True  # whether requests default to the sampling parameters in generation_config.json

    def read_config(self) -> ModelConfig:
        """Returns the configuration of a decoder. Raises ModelError if Quire cannot run the model."""
        if self.path.suffix == ".gguf":
            from services.worker.checkpoint.gguf_config import read_gguf_config

            model = read_gguf_config(self.path)
        else:
            model = read_model_config(self.path, self.implementation)
        return model if self.has_defaults else replace(model, default_sampling=GenerationDefaults())

    def read_encoder_config(self) -> EncoderConfig | None:
        """Returns the configuration of an encoder; None for other models. Raises ModelError if Quire cannot run it."""
        return None if self.path.suffix == ".gguf" else read_encoder_config(self.path)

    def read_pooling(self, option: str, default: PoolingKind) -> PoolingConfig:
        """Returns how the model pools hidden states into an embedding. `option`: value of --pooling-type; `default`:
        kind of pooling if neither the option nor the model's files name one. Raises ModelError for a kind that is not
        supported."""
        return read_pooling(self.path, option, default)

    def read_prompts(self, pooling: PoolingConfig) -> EmbeddingPrompts:
        """Returns the prompts of an embedding model that pools as `pooling` says. Raises ModelError if its files hold
        prompts that cannot be served."""
        return read_prompts(self.path, pooling)

    def read_tokenizer(self, *, has_pairs: bool = False) -> TokenizerFiles:
        """Reads the tokenizer and the chat template. `has_pairs`: see `read_tokenizer`. Raises ModelError if there is
        no tokenizer that can be read or converted to tokenizer.json, or if --chat-template is neither a file nor a
        template."""
        return read_tokenizer(self.path, read_chat_template(self.chat_template), has_pairs=has_pairs)


def find_checkpoint(
    config: WorkerConfig, progress: Progress = lambda _: None, patterns: Sequence[str] = _HUB_PATTERNS
) -> Checkpoint:
    """Finds the model that `config` names. If the model is not on this machine, downloads its files that match
    `patterns` from the Hugging Face hub. `progress` receives the fraction downloaded. Raises ModelError if there is no
    such model, or if the download fails."""
    found = _find(config, progress, patterns)
    return replace(
        found,
        chat_template=config.chat_template,
        implementation=next(name for name in IMPLEMENTATIONS if name == config.model_impl),
        has_defaults=config.generation_config == "auto",
    )


def read_chat_template(option: str) -> str | None:
    """Returns the chat template that `option` contains, or reads it from the file that `option` names. Returns None if
    `option` is empty. Raises ModelError if the file cannot be read."""
    if not option or "{" in option:
        return option or None
    try:
        return Path(option).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"--chat-template {option} is neither a template nor a readable file: {error}") from error


def _find(config: WorkerConfig, progress: Progress, patterns: Sequence[str]) -> Checkpoint:
    local = find_local(config)
    if local is not None:
        return local
    from services.worker.checkpoint.hub import download

    directory = download(config.model, config.revision or None, patterns, progress, config.download_dir or None)
    return Checkpoint(directory, config.served_model_name or (config.model,))


def find_local(config: WorkerConfig) -> Checkpoint | None:
    """Returns the model if it is on this machine: the bundled model, a directory or a GGUF file. Returns None if
    `config` names a model on the hub. Raises ModelError for a path that does not exist."""
    if not config.model or (config.model == BUNDLED and not Path(BUNDLED).exists()):
        directory = Path(str(resources.files("quire"))) / "models" / BUNDLED
        if not directory.is_dir():
            raise ModelError(f"the bundled model is missing from this installation ({directory}); name a model instead")
        return Checkpoint(directory, config.served_model_name or (BUNDLED,))
    path = Path(config.model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return Checkpoint(path, config.served_model_name or (path.stem, config.model))
    if path.is_dir():
        names = config.served_model_name or (path.resolve().name, config.model)
        return Checkpoint(_gguf_file_in(path, config.load_format) or path, names)
    if path.is_absolute() or config.model.startswith(("./", "../")) or path.suffix == ".gguf":
        raise ModelError(f"there is no {'file' if path.suffix == '.gguf' else 'directory'} {config.model}")
    return None


def _gguf_file_in(directory: Path, load_format: str) -> Path | None:
    """Returns the GGUF file to load from a directory; None to load safetensors. Raises ModelError if there are several
    GGUF files."""
    if load_format not in ("auto", "gguf") or (load_format == "auto" and (directory / "config.json").exists()):
        return None
    files = sorted(directory.glob("*.gguf"))
    if len(files) > 1:
        raise ModelError(f"{directory} holds {len(files)} GGUF files; name one, such as {files[0]}")
    return files[0] if files else None
