"""What the worker tells others about the model it serves."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.architectures import EncoderConfig, ModelConfig
from services.worker.checkpoint.tokenizer_files import TokenizerFiles
from services.worker.pooling import PoolingConfig


@dataclass(frozen=True, slots=True)
class ModelFacts:
    names: tuple[str, ...]  # the first is its name, the others are aliases
    config: ModelConfig | EncoderConfig
    max_model_len: int  # tokens of prompt and output together
    dtype: str  # that it computes in
    tokenizer: TokenizerFiles
    pooling: PoolingConfig
