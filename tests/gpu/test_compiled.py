"""What the compiler of this machine makes of the kernels that it will run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from services.worker.ops.triton.variant import TARGETS


@pytest.mark.timeout(900)
def test_every_served_kernel_compiles_for_every_target_and_none_spills() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "services.worker.ops.triton.compile"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for target in TARGETS:
        assert f"sm_{target}" in result.stdout
