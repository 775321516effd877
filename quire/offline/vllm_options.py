"""Options of vLLM's `LLM` that `quire serve` has not: those that change nothing here are taken."""

from __future__ import annotations

from pathlib import Path

from shared.config import ConfigError

# Every model gives embeddings, and those that generate do.
_TASKS = ("auto", "generate", "embed", "embedding", "score")
_RUNNERS = ("auto", "generate", "pooling")


def check_vllm_options(
    model: str,
    tokenizer: str | Path | None,
    trust_remote_code: bool,
    disable_log_stats: bool,
    task: str | None,
    runner: str | None,
) -> None:
    """Raises ConfigError, with a sentence, for one that would change something."""
    if tokenizer is not None and not _are_same(str(tokenizer), model):
        raise ConfigError(f"tokenizer is {str(tokenizer)!r}, and only the model's own is built: leave it out")
    if trust_remote_code:
        raise ConfigError("trust_remote_code is on, and code that comes with a model is never run: leave it out")
    if not disable_log_stats:
        raise ConfigError("disable_log_stats is off, and LLM logs none: leave it out, and see metrics_port")
    for name, given, known in (("task", task, _TASKS), ("runner", runner, _RUNNERS)):
        if given is not None and given not in known:
            raise ConfigError(f"{name} is {given!r}: use one of {', '.join(known)}, or leave it out")


def _are_same(one: str, other: str) -> bool:
    """Names of the hub, or paths."""
    return one == other or (bool(other) and Path(one).expanduser().resolve() == Path(other).expanduser().resolve())
