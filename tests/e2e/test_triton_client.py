"""Triton's client reads state, metadata, answers and errors of the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

from tests.e2e.conftest import ROOT, Server
from tests.fakes.tools import CLIENTS_PYTHON, needs_clients
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import call

PROGRAM = ROOT / "tests" / "e2e" / "clients" / "triton_client.py"


async def text_of(server: Server) -> str:
    """What generate answers to the client's question."""
    body = {"text_input": "One, two,", "max_tokens": 8, "temperature": 0}
    path = f"/v2/models/{server.model}/generate"
    reply = await call(server.url.removeprefix("http://"), "POST", path, json.dumps(body).encode())
    assert reply.status == 200
    text = json.loads(reply.body)["text_output"]
    assert isinstance(text, str)
    return text


async def test_generate_is_a_completion(server: Server) -> None:
    """Greedy, so that both give the same tokens."""
    body = {"model": server.model, "prompt": "One, two,", "max_tokens": 8, "temperature": 0}
    address = server.url.removeprefix("http://")
    completion = await call(address, "POST", "/v1/completions", json.dumps(body).encode())
    assert await text_of(server) == json.loads(completion.body)["choices"][0]["text"]
    stream = {"text_input": body["prompt"], "max_tokens": 8, "temperature": 0}
    path = f"/v2/models/{server.model}/generate_stream"
    reply = await call(address, "POST", path, json.dumps(stream).encode())
    events = [json.loads(line.removeprefix("data: ")) for line in reply.body.decode().strip().split("\n\n")]
    assert "".join(event["text_output"] for event in events) == await text_of(server)


@needs_clients()
async def test_the_client_of_triton_runs_unchanged(server: Server) -> None:
    result = await asyncio.to_thread(
        subprocess.run,
        [str(CLIENTS_PYTHON), str(PROGRAM), server.url.removeprefix("http://"), server.model, "http", "grpc"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout.splitlines()[-1])
    text = await text_of(server)
    error = f"The model `none` does not exist. Served here: `{server.model}`."
    expected = {"alive": [True] * 3, "platform": "quire", "text": text, "error": error}
    assert answers == {"http": {**expected, "json": text}, "grpc": expected}
