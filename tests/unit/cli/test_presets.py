"""`--preset`: what it sets, and what takes precedence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.cli.presets import PRESETS
from quire.cli.stack_options import build_stack
from services.worker.config import WorkerConfig
from shared.config import ConfigError

MODELS = Path(__file__).parents[3] / "quire" / "models"


def configs(flags: dict[str, Any], file: dict[str, Any] | None = None) -> tuple[Any, Any, tuple[str, ...]]:
    stack = build_stack(flags, file or {})
    return stack.configs["worker"], stack.configs["scheduler"], stack.notes


@pytest.mark.parametrize(
    ("name", "memory", "num_seqs", "length", "step_tokens"),
    [
        ("throughput", 0.95, 512, 4096, None),
        ("latency", 0.85, 32, 8192, None),
        ("long-context", 0.92, 16, 131072, 4096),
    ],
)
def test_each_sets_its_options_and_says_so(
    name: str, memory: float, num_seqs: int, length: int, step_tokens: int | None
) -> None:
    worker, scheduler, (note,) = configs({"preset": name})
    assert worker.gpu_memory_utilization == memory
    assert (worker.max_num_seqs, worker.max_auto_model_len, worker.max_model_len) == (num_seqs, length, None)
    assert worker.max_num_batched_tokens == scheduler.max_num_batched_tokens == step_tokens
    for key, value in PRESETS[name].items():
        assert f"--{key} {value}" in note


def test_what_is_set_elsewhere_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_GPU_MEMORY_UTILIZATION", "0.5")
    worker, _, (note,) = configs({"preset": "latency", "max_num_seqs": 40}, {"max-model-len": 100})
    assert (worker.gpu_memory_utilization, worker.max_num_seqs) == (0.5, 40)
    assert (worker.max_model_len, worker.max_auto_model_len) == (100, None)
    assert note == (
        "--preset latency sets nothing; your own options decide about --gpu-memory-utilization, --max-num-seqs, "
        "--max-auto-model-len"
    )


def test_models_have_presets_of_their_own() -> None:
    tables = [{"model": f"{MODELS}/quire-chat", "preset": "latency"}, {"model": f"{MODELS}/quire-chat-draft"}]
    stack = build_stack({}, {"models": tables, "preset": "throughput"})
    assert [group.config.max_num_seqs for group in stack.of_kind("worker")] == [32, 512]
    assert len(stack.notes) == 2


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="--preset is 'fast': use one of throughput, latency, long-context"):
        build_stack({"preset": "fast"}, {})


@pytest.mark.parametrize(
    ("options", "longest"),
    [({}, 4096), ({"max_auto_model_len": 100}, 100), ({"max_auto_model_len": 8192}, 4096),
     ({"max_auto_model_len": 100, "max_model_len": 200}, 200)],
)  # fmt: skip
def test_the_longest_sequence_is_limited_by_the_model_and_by_the_options(options: dict[str, Any], longest: int) -> None:
    assert WorkerConfig(**options).longest(4096) == longest
