"""Maximum number of tokens in a step."""

from __future__ import annotations

from services.worker.config import WorkerConfig

DEFAULT_STEP_TOKENS = 2048


def resolve_step_tokens(config: WorkerConfig, longest: int) -> int:
    """Returns the maximum number of tokens per step: as configured, else the default. Without chunked prefill, the
    default grows to hold a prompt of `longest` tokens."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    return DEFAULT_STEP_TOKENS if config.enable_chunked_prefill else max(DEFAULT_STEP_TOKENS, longest)
