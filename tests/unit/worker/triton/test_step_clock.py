"""The worker times its steps by the device's clock and waits for nothing to do so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from services.worker.model_runner import ModelRunner
from services.worker.plan import DeviceTime, StepResult
from services.worker.step_log import StepLog
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner, save_model
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.simulated_worker import prompts, serving, write_tokenizer


def collected(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> list[StepResult]:
    """To which every result is added that the runner brings."""
    results: list[StepResult] = []
    collect = runner.collect

    def collect_and_keep(step: object) -> StepResult:
        results.append(collect(step))  # type: ignore[arg-type]
        return results[-1]

    monkeypatch.setattr(runner, "collect", collect_and_keep)
    return results


@pytest.mark.skipif(HAS_GPU, reason="there is a real one")
def test_every_step_on_a_gpu_has_times_that_fill_the_time_between_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the rules of serving: an event that is read too early, or a wait, is refused."""
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    write_tokenizer(tmp_path)
    with serving(tmp_path) as (_, runner):
        results = collected(runner, monkeypatch)
        Driver(runner, seed=3, max_chunk=24, idle=0.0).run(Request(prompts(9)[0], 4))
        times = [result.device for result in results if result.num_scheduled_tokens]
        assert all(time is not None and time.busy > 0 for time in times)
        first, *others = times
        assert first is not None
        assert first.idle == 0
        assert others
        assert all(time is not None and time.idle >= 0 for time in others)
        results.clear()
        runner.reset()
        Driver(runner, seed=3, max_chunk=24, idle=0.0).run(Request(prompts(9)[0], 2))
        assert results[0].device is not None
        assert results[0].device.idle == 0, "the time between epochs is nobody's"


def test_a_cpu_is_not_timed_by_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner = make_runner(tmp_path)
    results = collected(runner, monkeypatch)
    Driver(runner, seed=3).run(Request(prompts(5)[0], 2))
    assert {result.device for result in results} == {None}


def test_the_log_has_a_line_for_every_step(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps.jsonl")
    no_ids = np.zeros(0, np.uint32)
    for step_id, device in ((1, DeviceTime(0.0, 0.004)), (2, None)):
        log.write(StepResult(step_id, no_ids, no_ids, None, (), 7, 30, 4000, device=device), num_sequences=3)
    log.close()
    first, second = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert first.pop("time_s") <= second.pop("time_s")
    assert first == {
        "step": 1, "sequences": 3, "scheduled_tokens": 7, "sampled_tokens": 0, "queue_us": 30, "run_us": 4000,
        "device_idle_us": 0.0, "device_busy_us": 4000.0,
    }  # fmt: skip
    assert second["device_idle_us"] is None
