"""Libraries that people reach OpenAI's API through, pointed at the gateway, need nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Server

# `make clients` makes it, and CI does.
PYTHON = Path(os.environ.get("QUIRE_CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
CLIENTS = ("openai", "langchain", "litellm", "instructor")
# Nothing is looked up in the internet, and nothing is reported there.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "LITELLM_LOG": "ERROR"}

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="the clients' environment is not here: make clients"),
    pytest.mark.parametrize("client", CLIENTS),
]


def run(client: str, server: Server, part: str) -> dict[str, Any]:
    program = ROOT / "tests" / "e2e" / "clients" / f"{client}_client.py"
    result = subprocess.run(
        [PYTHON, program, f"{server.url}/v1", server.model, part],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OFFLINE,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_chat(server: Server, client: str) -> None:
    answer = run(client, server, "chat")
    assert "5" in answer["text"]
    assert answer["tokens"] > 10


def test_a_stream_says_the_same(server: Server, client: str) -> None:
    pieces = run(client, server, "stream")["pieces"]
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == run(client, server, "chat")["text"]


def test_an_error_is_typed_and_names_its_field(server: Server, client: str) -> None:
    assert run(client, server, "error") == {"status": 400, "param": "top_p"}
