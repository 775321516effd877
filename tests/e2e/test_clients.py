"""Libraries that people reach OpenAI's API through, pointed at the gateway, need nothing changed."""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import ROOT, Server
from tests.fakes.tools import (
    CLIENTS_PYTHON,
    NODE,
    NODE_MODULES,
    OPENAI_3_PYTHON,
    needs_clients,
    needs_node,
    needs_openai_3,
)
from tests.fakes.waiting import HANG_S

PROGRAMS = ROOT / "tests" / "e2e" / "clients"
# The program of each client, the interpreter that runs it, and what it needs.
CLIENTS: dict[str, tuple[str | Path, str, Any]] = {
    "openai": (CLIENTS_PYTHON, "openai_client.py", needs_clients()),
    "langchain": (CLIENTS_PYTHON, "langchain_client.py", needs_clients()),
    "litellm": (CLIENTS_PYTHON, "litellm_client.py", needs_clients()),
    "instructor": (CLIENTS_PYTHON, "instructor_client.py", needs_clients()),
    "llama-index": (CLIENTS_PYTHON, "llama_index_client.py", needs_clients()),
    "huggingface_hub": (sys.executable, "hub_client.py", ()),
    "pydantic-ai": (OPENAI_3_PYTHON, "pydantic_ai_client.py", needs_openai_3()),
    "openai-agents": (OPENAI_3_PYTHON, "openai_agents_client.py", needs_openai_3()),
    "ai-sdk": (NODE, "node/ai_sdk_client.cjs", needs_node("ai")),
    "openai-js": (NODE, "node/openai_client.cjs", needs_node("openai")),
}
# Nothing is looked up in the internet, and nothing is reported there.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "LITELLM_LOG": "ERROR"}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=mark) for name, (_, _, mark) in CLIENTS.items()])
def answers(request: pytest.FixtureRequest, server: Server) -> dict[str, Any]:
    """What the client's program prints of each part. It runs once, because some clients take seconds to import."""
    interpreter, program, _ = CLIENTS[request.param]
    parts = ("chat", "stream", "error", "structured")
    result = subprocess.run(
        [interpreter, PROGRAMS / program, f"{server.url}/v1", server.model, *parts],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | OFFLINE
        | {"NODE_PATH": str(NODE_MODULES)},
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


@needs_clients()
def test_cohere_s_vectors_ranking_and_error(server: Server) -> None:
    result = subprocess.run(
        [CLIENTS_PYTHON, PROGRAMS / "cohere_client.py", server.url, server.model],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    for floats, bits, encoded in zip(answers["float"], answers["binary"], answers["base64"], strict=True):
        assert math.fsum(value * value for value in floats) == pytest.approx(1)
        assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == np.array(floats, "f4").tolist()
        assert bits == (np.packbits(np.array(floats) > 0).astype(int) - 128).tolist()
    # The query is the second document.
    ((index, score),) = answers["ranking"]
    assert (index, score) == (1, pytest.approx(1))
    assert score <= 1
    status, body = answers["refused"]
    assert (status, body["error"]["param"]) == (400, "top_n")
