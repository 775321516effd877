"""The examples of docs/grpc.md, read from it and run as they stand, against the server of these tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.e2e.conftest import ROOT, Server
from tests.e2e.grpcurl import grpcurl
from tests.fakes.waiting import HANG_S

ADDRESS = "127.0.0.1:8000"
# Language and content of each.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/grpc.md").read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = [block for language, block in BLOCKS if language == "python"]
COMMANDS = [block for _, block in BLOCKS if block.startswith("grpcurl ")]
CURLS = [block for _, block in BLOCKS if block.startswith("curl ")]


def here(block: str, server: Server) -> str:
    assert ADDRESS in block
    return block.replace(ADDRESS, server.address)


@pytest.mark.parametrize(
    ("program", "shown"),
    list(
        zip(
            PROGRAMS,
            [
                r"\['quire-chat'\]\n[^\n]*5[^\n]* \d+\n.*temperature",
                r"^\d+ \d+\n.*5 '\.'\n(' ?\w+,?' -\d+\.\d+ \d+\n|',' -\d+\.\d+ \d+\n)+\d+ \(0\.99\d*|1\.0\d*, ",
                r"5.* \[-\d.*prompt_tokens: \d+",
                r"^StatusCode.NOT_FOUND model\n$",
            ],
            strict=True,
        )
    ),
    ids=["client", "more of it", "stubs", "errors"],
)
def test_programs(server: Server, program: str, shown: str) -> None:
    command = [sys.executable, "-c", here(program, server)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 0, result.stderr
    assert re.search(shown, result.stdout, re.DOTALL), result.stdout


def test_commands(server: Server) -> None:
    generated, tokenized, scored, health, ready, metadata = (grpcurl(here(command, server)) for command in COMMANDS)
    assert generated[-1]["final"]["usage"]["completionTokens"] <= 8
    assert len(tokenized[0]["tokenIds"]) > 3
    assert scored[0]["scores"][0] == pytest.approx(1, abs=1e-5)
    assert scored[0]["scores"][1] < 1
    assert health == [{"status": "SERVING"}]
    assert ready == [{"ready": True}]
    assert metadata == [{"name": "quire-chat", "platform": "quire"}]


def test_curl(server: Server) -> None:
    (command,) = CURLS
    result = subprocess.run(["bash", "-c", here(command, server)], capture_output=True, text=True, timeout=60)
    *deltas, last = json.loads(result.stdout)
    assert "5" in "".join(event["delta"].get("text", "") for event in deltas)
    assert last["final"]["usage"]["promptTokens"] > 0
