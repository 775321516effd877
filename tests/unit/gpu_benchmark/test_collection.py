"""`pytest -m gpu tests` collects what only a GPU can run, where nothing is installed but what a GPU machine has, and
pytest with its plugins or without."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare_tree import ROOT, environment

TOOLS = ("hypothesis", "pytest", "pytest_timeout", "xdist")


@pytest.mark.parametrize("tools", [TOOLS, pytest.param(("pytest",), marks=pytest.mark.thorough)], ids=len)
def test_they_are_collected_from_a_bare_tree(tmp_path: Path, tools: tuple[str, ...]) -> None:
    # Plugins are found by what pip has written, hidden or not.
    plugins = [f"-p{name}" for name in ("pytest_timeout", "xdist.plugin") if name.partition(".")[0] in tools]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, "-m", "gpu", "tests", "--collect-only"],
        env={**environment(tmp_path, tools), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    found = {*re.findall(r"^(tests/\S+\.py)::", result.stdout, flags=re.MULTILINE)}
    assert found >= {str(path.relative_to(ROOT)) for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert "tests/unit/worker/triton/test_device_steps.py" in found
