"""The README's examples, read from it and run as they stand, against the server of these tests."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.e2e.conftest import ROOT, Server
from tests.e2e.grpcurl import grpcurl

ADDRESS = "127.0.0.1:8000"


def example(beginning: str, server: Server) -> str:
    """The one code block of the README that begins so, with this server's address in it."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if block.startswith(beginning))
    assert ADDRESS in block
    return str(block).replace(ADDRESS, server.address)


def output(*command: str) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_curl(server: Server) -> None:
    assert output("sh", "-c", example("curl ", server)).endswith("data: [DONE]\n\n")


def test_the_python_client(server: Server) -> None:
    # "Count from 3 to 9."
    assert len(re.findall(r"\d+", output(sys.executable, "-c", example("from quire import", server)))) > 3


def test_grpcurl(server: Server) -> None:
    events = grpcurl(example("grpcurl -plaintext -d ", server))
    assert "".join(event["delta"].get("text", "") for event in events[:-1])
    assert events[-1]["final"]["usage"]["completionTokens"] > 0
