"""How many tokens a step takes."""

from __future__ import annotations

from services.worker.config import WorkerConfig

DEFAULT_STEP_TOKENS = 2048


def resolve_step_tokens(config: WorkerConfig, longest: int) -> int:
    """Tokens per step, at most: as configured, or the default, but without chunked prefill enough for a prompt of
    `longest` tokens."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    return DEFAULT_STEP_TOKENS if config.enable_chunked_prefill else max(DEFAULT_STEP_TOKENS, longest)
