"""Checks a model's small files within milliseconds, so that a broken model is refused before torch is imported."""

from __future__ import annotations

from services.worker.checkpoint.find import find_local, read_chat_template
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models import EncoderConfig, ModelConfig


def check_start(config: WorkerConfig) -> None:
    """Raises ModelError if the chat template or the model's configuration cannot be used. Does not check the
    configuration of a model that must be downloaded, nor that of a GGUF file, which takes longer to read."""
    read_chat_template(config.chat_template)
    checkpoint = find_local(config)
    if checkpoint is not None and checkpoint.path.suffix != ".gguf":
        check_max_model_len(config, checkpoint.read_encoder_config() or checkpoint.read_config())


def check_max_model_len(config: WorkerConfig, model: ModelConfig | EncoderConfig) -> None:
    """Raises ModelError if --max-model-len exceeds the model's limit."""
    if config.max_model_len is not None and config.max_model_len > model.max_model_len:
        raise ModelError(
            f"--max-model-len is {config.max_model_len}; the model takes at most {model.max_model_len} tokens"
        )
