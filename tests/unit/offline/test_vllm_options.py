"""vLLM's options that `quire serve` has not: taken where they change nothing."""

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
        ({"tokenizer": "./other"}, "tokenizer is './other', and only the model's own is built"),
        ({"trust_remote_code": True}, "code that comes with a model is never run"),
        ({"disable_log_stats": False}, "LLM logs none"),
        ({"task": "classify"}, "task is 'classify': use one of auto, generate"),
        ({"runner": "draft"}, "runner is 'draft': use one of auto, generate, pooling"),
    ],
)
def test_what_would_change_something_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LLM("./model", **options)


def test_the_bundled_models_tokenizer_is_no_other() -> None:
    with pytest.raises(ConfigError, match="tokenizer is"):
        LLM(tokenizer=".")
