"""Facts about the served model, for schedulers and routers."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.checkpoint.tokenizer_files import TokenizerFiles
from services.worker.models import EncoderConfig, ModelConfig
from services.worker.pooling import EmbeddingPrompts, PoolingConfig


@dataclass(frozen=True, slots=True)
class ModelFacts:
    names: tuple[str, ...]  # the first is canonical, the others are aliases
    config: ModelConfig | EncoderConfig
    max_model_len: int  # tokens, prompt and output together
    dtype: str  # type of the computation
    tokenizer: TokenizerFiles
    pooling: PoolingConfig
    prompts: EmbeddingPrompts  # of a model with embeddings
    version: str = ""  # among the versions of the name; empty: the only one
