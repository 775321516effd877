"""`quire serve` as whoever starts it meets it: what it prints once it works, and how it ends where it cannot."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from quire import Client
from tests.e2e.conftest import ROOT
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import with_environment

QUIRE = (sys.executable, "-m", "quire.cli.main")
KEY = "open-sesame"


@dataclass(frozen=True)
class Served:
    """A stack, by what it printed on standard output and on standard error, and the key that it asks for."""

    text: str
    notes: list[str]
    key: str | None

    def after(self, label: str) -> str:
        (word,) = re.findall(rf"^  {label} +(\S+)$", self.text, re.MULTILINE)
        return str(word)

    def command(self, name: str) -> str:
        (line,) = re.findall(rf"\b{name} .*", self.text)
        return str(line)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **({"QUIRE_API_KEY": self.key} if self.key else {})}


@pytest.fixture(scope="module", params=[None, KEY], ids=["open", "with a key"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    key: str | None = request.param
    command = [*QUIRE, "serve", "--port", "0", "--preset", "latency", *(("--api-key", key) if key else ())]
    with (
        tempfile.TemporaryFile("w+") as notes,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=notes, text=True, cwd=ROOT) as process,
    ):
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "Ctrl-C stops it.\n":
                break
        notes.seek(0)
        lines = notes.read().splitlines()
        try:
            yield Served(text, lines, key)
        finally:
            process.terminate()
            assert process.wait(HANG_S) == 0


def test_it_says_what_its_preset_sets(served: Served) -> None:
    assert [line for line in served.notes if "--preset" in line] == [
        "--preset latency sets --gpu-memory-utilization 0.85, --max-num-seqs 32, --max-auto-model-len 8192"
    ]


def test_the_addresses_that_it_prints_answer(served: Served) -> None:
    assert served.text.startswith("\nquire-chat is served.\n")
    with openai.OpenAI(base_url=served.after("OpenAI's API"), api_key=served.key or "none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["quire-chat"]
    with Client(served.after("gRPC"), api_key=served.key) as typed:
        assert [model.name for model in typed.models()] == ["quire-chat"]
    with urllib.request.urlopen(served.after("metrics")) as response:
        assert b"vllm:num_requests_running" in response.read()


def test_it_says_whose_code_runs_the_model(served: Served) -> None:
    assert "worker: quire-chat (LlamaForCausalLM) runs with Quire's own code" in served.notes


def test_the_curl_line_that_it_prints_streams_an_answer(served: Served) -> None:
    result = subprocess.run(
        ["sh", "-c", served.command("curl")], env=served.environment, capture_output=True, text=True, timeout=HANG_S
    )
    assert result.returncode == 0, result.stderr
    assert '"delta":{"content":"' in result.stdout.replace(" ", "")
    assert result.stdout.endswith("data: [DONE]\n\n")


def test_the_chat_that_it_prints_answers(served: Served) -> None:
    command = [*QUIRE, *shlex.split(served.command("quire chat"))[1:]]
    result = subprocess.run(
        command, input="Hello!\n", env=served.environment, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


@pytest.mark.parametrize("served", [KEY], ids=["with a key"], indirect=True)
def test_the_key_is_asked_for_and_not_printed(served: Served) -> None:
    assert KEY not in served.text
    with (
        openai.OpenAI(base_url=served.after("OpenAI's API"), api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.models.list()
    assert refused.value.code == "invalid_api_key"


def failed_start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`quire serve` that ends by itself; no process of it may be left, and no file."""
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        result = subprocess.run(
            [*QUIRE, "serve", *arguments],
            env={**os.environ, "SERVE_TEST": directory, "XDG_RUNTIME_DIR": directory},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert with_environment(f"SERVE_TEST={directory}") == []
        assert os.listdir(directory) == []
    assert result.stdout == ""
    return result


def test_a_model_that_is_not_there_is_told_by_the_worker() -> None:
    result = failed_start("/nowhere", "--port", "0")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "quire serve: worker failed: there is no directory /nowhere"


def test_a_taken_port_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = failed_start("--port", address.partition(":")[2])
    assert result.returncode == 2
    assert result.stderr == (
        f"quire serve: cannot listen on {address}: address already in use; choose another port with --port\n"
    )
