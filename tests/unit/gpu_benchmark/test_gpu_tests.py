"""`pytest -m gpu tests` collects what a GPU runs, and imports nothing that a GPU machine may lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare_tree import HIDDEN, ROOT, environment


@pytest.mark.timeout(600)
def test_they_are_collected_from_a_bare_tree(tmp_path: Path) -> None:
    hidden = {**environment(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    site = tmp_path / "sitecustomize.py"  # hides all but the tests' runner itself
    site.write_text(site.read_text().replace(repr(HIDDEN), repr(tuple(name for name in HIDDEN if name != "pytest"))))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests", "--collect-only"]
    result = subprocess.run(command, env=hidden, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    collected = {line.partition("::")[0] for line in result.stdout.splitlines() if "::" in line}
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert own
    assert own <= collected
