"""`smoke` and `lease` run to their end on the simulated GPU, from a bare source tree.

`make gpu-dry-run` runs all of both, for all forms of weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import commands, lease
from benchmarks.gpu.cases import Setting
from benchmarks.gpu.forms import FORMS, MORE_FORMS
from tests.bare_tree import ROOT, environment


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """The results, of a command that passed. Its output directory holds one archive."""
    out = folder / "out"
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments, "--dry-run", "--limit", "3600", "--out", str(out)],
        env=environment(folder), cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.iterdir()
    with tarfile.open(path) as archive:
        assert {"results.json", "table.txt", "tracebacks.txt", "events.jsonl"} <= {*archive.getnames()}
        assert any(name.startswith("logs/") for name in archive.getnames())
        found: dict[str, Any] = json.load(archive.extractfile("results.json"))  # type: ignore[arg-type]
    skipped = [result for result in found["results"] if result["status"] == "skipped"]
    assert {(result["case"], "llguidance" in result["problem"]) for result in skipped} <= {("a grammar", True)}
    assert {result["status"] for result in found["results"]} <= {"ok", "skipped"}
    return found


@pytest.mark.thorough
@pytest.mark.timeout(1200)  # runs a benchmark to its end, which may take a busy core minutes
def test_a_lease_measures_an_engine(tmp_path: Path) -> None:
    form = "fp8"  # with pages in fp8: the most kernels
    found = run(tmp_path, "lease", "--form", form)
    assert found["about"]["arguments"][:3] == ["lease", "--form", form]
    loads = lease.TINY
    names = [figure["name"] for result in found["results"] for figure in result["figures"]]
    assert "memory read" in names
    for batch in loads.batches:
        for context in loads.contexts:
            assert f"decode, batch {batch}, context {context}" in names
    for length in loads.prompts:
        assert f"prefill, {length} tokens" in names
    for batch, context in loads.by_kernels:
        assert f"decode {batch} x {context}: products" in names
        assert f"decode {batch} x {context}: gaps" in names
    assert all(figure["value"] is not None for result in found["results"] for figure in result["figures"])


@pytest.mark.thorough
@pytest.mark.timeout(1200)  # runs a benchmark to its end, which may take a busy core minutes
def test_smoke_runs_kernels_and_every_kind_of_step(tmp_path: Path) -> None:
    kernels = "step inputs|attention fp32, fp8 pages$|products int4 fp32$"
    found = run(tmp_path, "smoke", "--form", "awq", "--only", f"engine 8B|{kernels}")
    of_engine = {result["case"] for result in found["results"] if result["group"].startswith("engine")}
    assert {"starts", "masks", "a grammar", "prompt logprobs", "embeddings", "swap to the host and back"} <= of_engine
    others = [result for result in found["results"] if not result["group"].startswith("engine")]
    assert {result["group"].split()[0] for result in others} == {"step", "attention", "products"}
    assert all(result["error"] is not None for result in others)


def test_smoke_covers_every_form_of_weights_and_every_kernel_module() -> None:
    groups = [group.name for stage in commands.stages("smoke", Setting()) for group in stage.groups]
    for form in FORMS:
        assert f"engine 8B {form}" in groups
    for form in MORE_FORMS:
        assert f"engine 1B {form}" in groups
    assert "engine encoder bfloat16" in groups
    for words in (
        "products fp8 x fp8",
        "products int8 x int8",
        "products int4",
        "attention bf16, fp8",
        "sampling 128256",
    ):
        assert any(words in group for group in groups), words
    only = [group.name for stage in commands.stages("smoke", Setting("awq")) for group in stage.groups]
    assert "engine 8B awq" in only
    assert "engine 8B fp8" not in only


def test_a_lease_names_its_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.parse(["lease", "--out", str(tmp_path)])
    assert "--form bf16, fp8 or awq" in capsys.readouterr().err


def test_without_a_gpu_the_commands_say_what_would_run(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "smoke", "--out", str(tmp_path)],
        env={**environment(tmp_path), "CUDA_VISIBLE_DEVICES": ""}, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "--dry-run" in result.stderr
