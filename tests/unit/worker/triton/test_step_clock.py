"""The worker times its steps by the device's clock and waits for nothing to do so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from services.worker.plan.step_plan import DeviceTime, StepResult
from services.worker.service import step_log
from services.worker.service.step_log import StepLog
from services.worker.step.clock import Event
from services.worker.step.create import create_step_clock
from services.worker.step.model_runner import ModelRunner
from services.worker.transfers.copies import timing_event
from tests.simulated_gpu import SimulatedGPU
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner, save_model
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.simulated_worker import prompts, serving, write_tokenizer

CUDA = torch.device("cuda", 0)


def event_at(seconds: float) -> Event:
    """One of the simulated GPU's that says it came to pass then."""
    event = timing_event()
    event.record()
    event.recorded_at = seconds  # type: ignore[attr-defined]
    return event


@pytest.mark.skipif(HAS_GPU, reason="there is a real one")
def test_idle_time_counts_from_the_last_step_that_ran_the_model() -> None:
    with SimulatedGPU().running() as gpu:
        clock = create_step_clock(CUDA)
        gpu.arrive(gpu.num_copies)

        def times(begun: float | None, ended: float) -> tuple[float, float] | None:
            device = clock.collected(None if begun is None else event_at(begun), event_at(ended))
            return None if device is None else (device.idle, device.busy)

        assert times(None, 0.5) is None
        assert times(1.0, 1.5) == (0.0, 0.5), "a device is not idle before its first step"
        assert times(1.75, 2.0) == (0.25, 0.25)
        assert times(None, 4.0) is None, "a step of copies alone runs no model"
        assert times(6.0, 6.5) == (4.0, 0.5)
        assert times(6.25, 7.0) == (0.0, 0.75), "launched behind the step before it"
        clock.reset()
        assert times(9.0, 9.5) == (0.0, 0.5), "no step was to run between epochs"


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
def test_every_step_on_a_gpu_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert results[0].device.idle == 0, "time between epochs does not count as idle"


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


def test_a_full_disk_ends_the_log_and_no_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does the log's end raise, once with lines that are still buffered and once without."""
    no_ids = np.zeros(0, np.uint32)
    result = StepResult(1, no_ids, no_ids, None, (), 7, 30, 4000)
    log = StepLog(Path("/dev/full"))
    log.write(result, num_sequences=3)
    log.close()
    assert [record.message for record in caplog.records] == [
        "cannot write to the step log /dev/full any more: [Errno 28] No space left on device"
    ]
    monkeypatch.setattr(step_log, "FLUSH_INTERVAL_S", 0.0)
    log = StepLog(Path("/dev/full"))
    for _ in range(3):
        log.write(result, num_sequences=3)
    log.close()
    assert len(caplog.records) == 2, "a warning for each log"
