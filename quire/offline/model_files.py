"""Reads the tokenizer and the default sampling parameters from the files that the worker's model was loaded from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from quire.offline.sampling_params import SamplingParams
from services.worker.checkpoint import find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(config: WorkerConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer with transformers, whose import takes seconds. Raises ValueError if the files have no
    tokenizer that transformers can read."""
    from transformers import AutoTokenizer

    try:
        path = find_checkpoint(config).path
        if path.suffix == ".gguf":
            loaded = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        else:
            loaded = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers has no exception class of its own for unreadable files
        raise ValueError(f"transformers cannot read the model's tokenizer: {error}") from error
    return cast("PreTrainedTokenizerBase", loaded)


def default_sampling_params(config: WorkerConfig) -> SamplingParams:
    """Returns the parameters in the model's generation_config.json. Parameters that are not in that file have vLLM's
    defaults. Raises ValueError if the model's files no longer exist."""
    try:
        checkpoint = find_checkpoint(config)
        model = checkpoint.read_encoder_config() or checkpoint.read_config()
    except ModelError as error:
        raise ValueError(str(error)) from error
    return SamplingParams(
        **{name: value for name, value in asdict(model.default_sampling).items() if value is not None}
    )
