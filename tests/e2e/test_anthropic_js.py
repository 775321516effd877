"""Anthropic's SDK for JavaScript, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Server

# `make clients` makes it where there is npm.
MODULES = Path(os.environ.get("QUIRE_CLIENTS_NODE_MODULES", ROOT / ".venv-clients" / "node_modules"))
PROGRAM = ROOT / "tests" / "e2e" / "clients" / "node" / "anthropic_client.cjs"


@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "@anthropic-ai").exists(),
    reason="Node.js or the SDK is not here: make clients",
)
def test_a_tool_runner_goes_on_without_a_thread(server: Server) -> None:
    result = subprocess.run(
        ["node", PROGRAM, server.url, server.model],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    (first, num_first), (_, num_second) = answers["turns"]
    # The second turn has the conversation so far.
    assert (first, num_second > num_first) == ("tool_use", True)
    assert answers["refused"] == ["ThreadUnsupportedRequestError", 400]
    assert answers["models"] == [server.model]
