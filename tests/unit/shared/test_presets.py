"""`--preset`: what it sets, and what takes precedence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.cli.stack import part_specs
from quire.cli.stack_options import build_stack
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ConfigError, resolve
from shared.presets import OF_SCHEDULERS, PRESETS, Preset

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


def resolved(config_class: type, *argv: str) -> tuple[Any, str]:
    preset = Preset(OF_SCHEDULERS if config_class is SchedulerConfig else None)
    return resolve(config_class, argv, prog="part", description="", expand=preset.expand), preset.note


def test_a_part_alone_has_those_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_PRESET", "long-context")
    scheduler, note = resolved(SchedulerConfig)
    # It runs as many sequences as its workers can.
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (None, 4096)
    assert note == "--preset long-context sets --max-num-batched-tokens 4096"
    scheduler, note = resolved(SchedulerConfig, "--max-num-batched-tokens", "100")
    assert scheduler.max_num_batched_tokens == 100
    assert note == "--preset long-context sets nothing; your own options decide about --max-num-batched-tokens"
    worker, note = resolved(WorkerConfig)
    assert (worker.gpu_memory_utilization, worker.max_num_seqs, worker.max_auto_model_len) == (0.92, 16, 131_072)
    assert all(f"--{key} {value}" in note for key, value in PRESETS["long-context"].items())
    assert resolved(WorkerConfig, "--preset", "latency")[0].max_num_seqs == 32


def test_without_one_nothing_is_set_or_said() -> None:
    assert resolved(WorkerConfig) == (WorkerConfig(), "")


def test_a_part_alone_refuses_an_unknown_one() -> None:
    with pytest.raises(SystemExit, match="part: --preset is 'fast': use one of throughput"):
        resolved(WorkerConfig, "--preset", "fast")


def test_the_parts_of_a_stack_get_its_options_but_not_its_name(tmp_path: Path) -> None:
    """Else a part would take the preset's value where the user chose the option's default."""
    specs = part_specs(build_stack({"preset": "throughput", "max_num_seqs": 256}, {}), tmp_path)
    (worker,) = (spec.argv for spec in specs if spec.kind == "worker")
    assert "--gpu-memory-utilization=0.95" in worker
    assert not any(word.startswith("--max-num-seqs") for word in worker)
    assert not any(word.startswith("--preset") for spec in specs for word in spec.argv)


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


def test_the_document_has_their_values() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "options.md").read_text().partition("## Presets")[2].splitlines()
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    names = [name.removeprefix("--") for name in cells[0]]
    documented = {
        row[0]: {
            name: float(value.replace(",", ""))
            for name, value in zip(names[1:], row[1:], strict=True)
            if value != "by the device"
        }
        for row in cells[1:]
    }
    assert documented == PRESETS
