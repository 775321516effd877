"""Libraries that people reach OpenAI's API through, pointed at the gateway, need nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Server
from tests.fakes.tools import CLIENTS_PYTHON, needs_clients
from tests.fakes.waiting import HANG_S

CLIENTS = ("openai", "langchain", "litellm", "instructor")
# Nothing is looked up in the internet, and nothing is reported there.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "LITELLM_LOG": "ERROR"}

pytestmark = needs_clients()


@pytest.fixture(scope="module", params=CLIENTS)
def answers(request: pytest.FixtureRequest, server: Server) -> dict[str, Any]:
    """What the client's program prints of each part. It runs once, because some clients take seconds to import."""
    program = ROOT / "tests" / "e2e" / "clients" / f"{request.param}_client.py"
    result = subprocess.run(
        [CLIENTS_PYTHON, program, f"{server.url}/v1", server.model, "chat", "stream", "error", "structured"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OFFLINE,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(printed, dict)
    return printed


def test_chat_stream_and_error(answers: dict[str, Any]) -> None:
    assert "5" in answers["chat"]["text"]
    assert answers["chat"]["tokens"] > 10
    pieces = answers["stream"]["pieces"]
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == answers["chat"]["text"]
    assert answers["error"] == {"status": 400, "param": "top_p"}


def test_a_tool_call_or_a_structured_reply(answers: dict[str, Any]) -> None:
    """Whatever the model would like to say, its answer is one of two words."""
    answer = answers["structured"]
    assert answer["name"] == "judge"
    assert answer["verdict"] in ("yes", "no")
