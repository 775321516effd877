"""The README's examples, read from it and run as they stand, against the server of these tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Server
from tests.e2e.grpcurl import grpcurl
from tests.fakes.waiting import HANG_S

ADDRESS = "127.0.0.1:8000"


def block(beginning: str, document: str = "README.md") -> str:
    """The one code block of the document that begins so."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = (found for found in blocks if found.startswith(beginning))
    return str(found)


def example(beginning: str, server: Server, document: str = "README.md") -> str:
    """The block with this server's address in it."""
    found = block(beginning, document)
    assert ADDRESS in found
    return found.replace(ADDRESS, server.address)


def output(*command: str, cwd: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG_S, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_curl(server: Server) -> None:
    assert output("sh", "-c", example("curl -N ", server)).endswith("data: [DONE]\n\n")


def test_tools(server: Server) -> None:
    answer = json.loads(output("sh", "-c", "curl -s" + example("curl http", server).removeprefix("curl")))
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    # The bundled model calls nothing; the client asks all the same.
    assert output(sys.executable, "-c", example("from quire import", server, "docs/tools.md")) == ""


@pytest.mark.parametrize("client", ["openai import OpenAI\n", "anthropic import", "ollama import"])
def test_clients_of_other_apis(server: Server, client: str) -> None:
    assert output(sys.executable, "-c", example(f"from {client}", server)).strip()


def test_the_python_client(server: Server) -> None:
    # "Count from 3 to 9."
    assert len(re.findall(r"\d+", output(sys.executable, "-c", example("from quire import Client", server)))) > 3


def test_grpcurl(server: Server) -> None:
    events = grpcurl(example("grpcurl -plaintext -d ", server))
    assert "".join(event["delta"].get("text", "") for event in events[:-1])
    assert events[-1]["final"]["usage"]["completionTokens"] > 0


def test_a_batch(tmp_path: Path) -> None:
    script = block("echo '{").replace("quire run-batch", f"{sys.executable} -m quire.cli.main run-batch")
    output("sh", "-ec", script, cwd=tmp_path)
    (line,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    (choice,) = json.loads(line)["response"]["body"]["choices"]
    assert "12" in choice["message"]["content"]


def test_an_llm() -> None:
    first, second, third, fourth = output(sys.executable, "-c", block("from quire import LLM")).splitlines()
    assert first.startswith("Count from 3")
    assert second.startswith("Count from 7")
    assert third
    score, size = fourth.split()
    assert float(score) == pytest.approx(1, abs=1e-5)
    assert int(size) > 1


def test_more_of_an_llm() -> None:
    *prompt, number, chat, size, scores = output(
        sys.executable, "-c", block("from quire import LLM", "docs/offline.md")
    ).splitlines()
    assert [line.split()[0] for line in prompt][-2:] == ["9", "."]
    assert all(re.search(r" -\d\S* \d+$", line) for line in prompt)
    assert re.fullmatch("[0-9]{3}", number)
    assert chat.strip() == "3 is 5."
    assert int(size) > 1
    assert json.loads(scores) == sorted(json.loads(scores), reverse=True)
