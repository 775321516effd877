"""The GPU's benchmark runs every part on a CPU with a tiny model, from a bare source tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import OF_A_FORM, OF_FLOATS
from tests.bare_tree import HIDDEN, ROOT, environment

RESULTS = ROOT / "benchmarks" / "results"


def test_what_is_hidden_cannot_be_imported(tmp_path: Path) -> None:
    """So that the test below is known to tell."""
    script = "import sys, importlib.util as u\nfor name in sys.argv[1:]:\n    print(u.find_spec(name))"
    names = ["pytest", "pydantic", "grpc_health", "google.api", "numpy"]
    assert {*names[:-1]} <= {*HIDDEN}
    result = subprocess.run(
        [sys.executable, "-c", script, *names], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    *hidden, numpy = result.stdout.splitlines()
    assert hidden == ["None"] * 4
    assert "numpy" in numpy


@pytest.mark.thorough
def test_every_part_runs_without_a_gpu_and_keeps_nothing(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in RESULTS.glob("*.json")}
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "all", "--dry-run"],
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    parts = re.split(r"^(\w+): .*\nDRY RUN.*\n", result.stdout, flags=re.MULTILINE)
    printed = list(zip(parts[1::2], parts[2::2], strict=True))
    assert [part for part, _ in printed] == [*OF_FLOATS, *OF_A_FORM]
    for part, text in printed:
        header, *lines = text.splitlines()
        assert "floor" in header, part
        values = [line[44:56].strip() for line in lines if line and not line.startswith("(")]
        assert values, part
        assert "-" not in values, f"{part} left something out:\n{text}"
    assert {path: path.read_bytes() for path in RESULTS.glob("*.json")} == before
