"""What a program may want of its model besides answers, read where the worker has read the model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from quire.offline.sampling_params import SamplingParams
from services.worker.checkpoint.find import find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(config: WorkerConfig) -> PreTrainedTokenizerBase:
    """transformers' own, which takes seconds to import. Raises ValueError where the files hold none."""
    from transformers import AutoTokenizer

    try:
        path = find_checkpoint(config).path
        if path.suffix == ".gguf":
            loaded = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        else:
            loaded = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers has no class of its own for files that it cannot read
        raise ValueError(f"transformers can read no tokenizer of the model's: {error}") from error
    return cast("PreTrainedTokenizerBase", loaded)


def default_sampling_params(config: WorkerConfig) -> SamplingParams:
    """As the model's generation_config.json has them, the rest as in vLLM. Raises ValueError where the model's files
    are there no more."""
    try:
        checkpoint = find_checkpoint(config)
        model = checkpoint.read_encoder_config() or checkpoint.read_config()
    except ModelError as error:
        raise ValueError(str(error)) from error
    return SamplingParams(
        **{name: value for name, value in asdict(model.default_sampling).items() if value is not None}
    )
