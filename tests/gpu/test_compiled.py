"""This machine's compiler accepts every kernel that it will run, and no kernel spills much."""

from __future__ import annotations

import subprocess

import pytest
import torch

from services.worker.ops.triton.variant import TARGETS
from shared.python_child import child_environment, python_command


@pytest.mark.timeout(900)
def test_every_served_kernel_compiles_for_this_device_and_none_spills_much(cuda: torch.device) -> None:
    """CI compiles for all targets, without a GPU. Newer devices take what the newest target is served."""
    major, minor = torch.cuda.get_device_capability(cuda)
    target = max(target for target in TARGETS if target <= 10 * major + minor)
    environment = {name: value for name, value in child_environment().items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        python_command("services.worker.ops.triton.compile", "--capability", str(target)),
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert f"sm_{target}" in result.stdout
