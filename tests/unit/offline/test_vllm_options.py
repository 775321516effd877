"""LLM accepts options of vLLM's that Quire does not have where they change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire import LLM
from quire.offline import llm as module
from shared.config import ConfigError


class StartedError(Exception):
    """Nothing was refused."""


class Starting:
    def __init__(self, options: object) -> None:
        raise StartedError


@pytest.fixture(autouse=True)
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OwnStack", Starting)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 0, "trust_remote_code": False, "disable_log_stats": True},
        {"tokenizer": "./model"},
        {"tensor_parallel_size": 1, "data_parallel_size": 1, "swap_space": 4, "dtype": "half"},
        {"compilation_config": {"level": 3}, "disable_custom_all_reduce": True, "cudagraph_capture_sizes": [1, 2]},
        {"tokenizer": Path("model")},
        *({"task": task} for task in ("auto", "generate", "embed", "embedding", "score", None)),
        *({"runner": runner} for runner in ("auto", "generate", "pooling", None)),
    ],
)
def test_what_changes_nothing_is_taken(options: dict[str, Any]) -> None:
    with pytest.raises(StartedError):
        LLM("./model", **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tokenizer": "./other"}, "--tokenizer cannot be used: Quire uses the tokenizer in the model's files"),
        ({"trust_remote_code": True}, "Quire runs no code that comes with a model"),
        ({"disable_log_stats": False}, "statistics are not logged; read them at /metrics"),
        ({"task": "reward"}, "use generate, embed, score or classify"),
        ({"runner": "draft"}, "use auto, generate or pooling"),
        ({"enable_lora": True, "max_loras": 3}, "--enable-lora and --max-loras are not implemented yet"),
    ],
)
def test_what_would_change_something_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LLM("./model", **options)


def test_the_bundled_models_tokenizer_is_no_other() -> None:
    with pytest.raises(ConfigError, match="--tokenizer cannot be used"):
        LLM(tokenizer=".")
