from __future__ import annotations

import json
import random
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from quire.cli import calibrate, simulate
from quire.inference.v1 import model_pb2
from quire.simulator import calibration
from quire.simulator.calibration import Measured, StepKind
from quire.simulator.device import Device, StepSeconds, read_device
from services.scheduler.converters import WorkerHello
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.plan import StepResult
from services.scheduler.core.request import Generate, SequenceRequest
from services.scheduler.core.scheduler import Scheduler


def test_a_plan_has_the_features_of_its_kind() -> None:
    core: Scheduler[SequenceRequest] = Scheduler(CoreConfig(64, 16, 8, 100, 1000))
    core.submit(SequenceRequest("a", array("I", range(250)), Generate(9)))
    core.submit(SequenceRequest("b", array("I", range(300, 340)), Generate(9)))
    kinds = [
        StepKind(0, 0, 100, 0),
        StepKind(0, 0, 100, 100),
        None,  # the end of one prompt beside the whole of the other is no kind that is measured
        None,  # and their decodes are at different contexts
    ]
    weights = [StepSeconds(*(float(term == which) for term in range(5))) for which in range(5)]
    for kind in kinds:
        plan = core.schedule()
        assert plan is not None
        if kind is not None:
            # A chunk that does not end its prompt samples nothing; those that are measured do.
            sampled = len(plan.sampling_wire_ids)
            expected = [feature - (feature == 1 and which == 2) for which, feature in enumerate(kind.features)]
            assert sampled == 0
            assert [weight.of(plan) for weight in weights] == expected
        ids = plan.sampling_wire_ids
        core.apply(StepResult(plan.step_id, ids, [1] * len(ids)))
    plan = core.schedule()
    assert plan is not None
    contexts = [252, 42]
    assert [weight.of(plan) for weight in weights] == [1, 2, 2, sum(contexts), sum(contexts)]
    assert StepKind(2, 147, 0, 0).features == (1, 2, 2, sum(contexts), sum(contexts))


def test_kinds_fit_the_worker() -> None:
    hello = WorkerHello(0, 1, model_pb2.ModelInfo(max_model_len=400), 60, 16, 8, 256, 0, 0.0, 0.0, 0.0)
    kinds = calibration.kinds_of(hello)
    assert any(kind.num_decodes and kind.chunk for kind in kinds)
    assert len(set(kinds)) == len(kinds)
    assert all(kind.num_tokens <= 256 for kind in kinds)
    assert all(kind.num_decodes + (kind.chunk > 0) <= 8 for kind in kinds)
    assert all(kind.num_blocks(16) <= 60 for kind in kinds)
    assert all(max(kind.context, kind.position + kind.chunk) <= 400 for kind in kinds)


def test_a_calibration_can_be_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No fit is as good as that: the same worker is measured three times.
    monkeypatch.setattr(calibration, "TRUSTED_ERROR", -1.0)
    device = tmp_path / "device.json"
    small = ["--max-num-seqs", "4", "--max-num-batched-tokens", "80", "--max-model-len", "400"]
    assert calibrate.main([*small, "--num-gpu-blocks-override", "200", "--output", str(device)]) == 0
    assert "kinds of step measured" in capsys.readouterr().out
    measured = read_device(device)
    assert (measured.max_num_seqs, measured.num_blocks, measured.max_model_len) == (4, 200, 400)
    assert 0 < measured.step.of_prompt(50) < 10
    assert float(measured.origin["median_error"]) < 1
    assert simulate.main(["--device", str(device), "--poisson", "1", "--duration", "10", "--prompt-tokens", "60"]) == 0
    assert "time to first token" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_report_and_the_fewest_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device, report = tmp_path / "device.json", tmp_path / "report"
    Device(StepSeconds(0.005, 1e-4, 0, 0, 0), 400, 16, 1600, 8, 256).save(device)
    load = ["--device", str(device), "--poisson", "40", "--duration", "10", "--prompt-tokens", "60"]
    assert simulate.main([*load, "--output-tokens", "20", "--workers", "2", "--output", str(report)]) == 0
    assert "time to first token" in capsys.readouterr().out
    assert {path.name for path in report.iterdir()} == {
        "report.html", "report.json", "latencies.png", "requests.png", "kv_cache.png",
    }  # fmt: skip
    page = (report / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page  # it needs nothing else
    search = [*load, "--slo-ttft-ms", "2000", "--slo-tbt-ms", "2000", "--workers", "64"]
    assert simulate.main([*search, "--json"]) == 0
    found = capsys.readouterr()
    assert "enough" in found.err
    assert json.loads(found.out)["num_groups"] < 64
    assert simulate.main([*load, "--slo-ttft-ms", "0.001", "--workers", "2"]) == 1
    assert "do not meet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--poisson", "1"], "--device is missing"),
        (["--device", "/nowhere", "--poisson", "1"], "No such file"),
        (["--device", "{device}"], "either a trace or --poisson"),
        (["--device", "{device}", "/nowhere"], "/nowhere"),
        (["--device", "{device}", "--poisson", "1", "--output", "/proc/none"], "/proc/none"),
        (
            ["--device", "{device}", "--poisson", "1", "--slo-percentile", "98", "--slo-ttft-ms", "1"],
            "--slo-percentile",
        ),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    Device(StepSeconds(0.01, 0, 0, 0, 0), 100, 16, 1600, 8, 256).save(tmp_path / "device.json")
    arguments = [argument.format(device=tmp_path / "device.json") for argument in arguments]
    try:
        assert simulate.main(arguments) == 1
        message = capsys.readouterr().err
    except SystemExit as stopped:
        message = str(stopped)
    assert words in message


def test_a_worker_that_does_not_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["/nowhere", "--output", str(tmp_path / "device.json")]) == 1
    assert "/nowhere" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


EXACT = StepSeconds(0.01, 1e-4, 1e-4, 1e-7, 1e-8)
KINDS = [StepKind(num, context, 0, 0) for num in (1, 2, 4, 8, 16) for context in (16, 64, 256, 1024, 4096)]


@pytest.mark.parametrize(
    ("num_disturbed", "is_trusted", "expected_passes"), [(0, True, 1), (1, True, 2), (9, False, 3)]
)
async def test_a_poor_fit_is_measured_again(num_disturbed: int, is_trusted: bool, expected_passes: int) -> None:
    num_passes = 0

    async def measure_all() -> AsyncIterator[Measured | None]:
        nonlocal num_passes
        num_passes += 1
        chance = random.Random(1)
        for kind in KINDS:
            disturbance = 100.0 ** chance.random() if num_passes <= num_disturbed else 1.0
            yield Measured(kind, disturbance * sum(EXACT.predict(np.array([kind.features]))))
        yield None

    fitted = await calibration.fit_that_is_trusted(measure_all)
    assert (fitted.is_trusted, num_passes) == (is_trusted, expected_passes)


def test_a_simulation_says_that_its_device_is_not_to_be_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", str(tmp_path / "d.json"), "--poisson", "1", "--duration", "5", "--processes", "1"]
    for error in (0.94, 0.05):
        Device(EXACT, 1000, 16, 4096, 8, 256, origin={"median_error": error}).save(tmp_path / "d.json")
        assert simulate.main(arguments) == 0
        assert ("more than 94% off" in capsys.readouterr().err) == (error > 0.5)


def test_steps_take_longer_where_services_share_the_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Device(EXACT, 1000, 16, 4096, 8, 256).save(tmp_path / "d.json")
    arguments = ["--device", str(tmp_path / "d.json"), "--poisson", "0.5", "--duration", "20", "--prompt-tokens", "50"]
    means = []
    for overhead in ("0", "7"):
        assert simulate.main([*arguments, "--processes", "1", "--json", "--step-overhead-ms", overhead]) == 0
        means.append(json.loads(capsys.readouterr().out)["time_between_tokens"]["mean"])
    assert 0.006 < means[1] - means[0] < 0.012, "more where sequences meet that otherwise would not have"
