"""Anthropic's SDK for JavaScript, pointed at the gateway, needs nothing changed."""

from __future__ import annotations

import json
import os
import subprocess

from tests.e2e.conftest import ROOT, Server
from tests.fakes.tools import NODE, NODE_MODULES, needs_node
from tests.fakes.waiting import HANG_S

PROGRAM = ROOT / "tests" / "e2e" / "clients" / "node" / "anthropic_client.cjs"


@needs_node("@anthropic-ai/sdk")
def test_a_tool_runner_goes_on_without_a_thread(server: Server) -> None:
    result = subprocess.run(
        [NODE, PROGRAM, server.url, server.model],
        env={**os.environ, "NODE_PATH": str(NODE_MODULES)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    (first, num_first), (_, num_second) = answers["turns"]
    # The second turn has the conversation so far.
    assert (first, num_second > num_first) == ("tool_use", True)
    assert answers["refused"] == ["ThreadUnsupportedRequestError", 400]
    assert answers["models"] == [server.model]
