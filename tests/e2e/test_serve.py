"""`quire serve` as whoever starts it meets it: what it prints once it works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from quire import Client
from tests.e2e.conftest import ROOT

QUIRE = (sys.executable, "-m", "quire.cli.main")
KEY = "open-sesame"


@dataclass(frozen=True)
class Served:
    """A stack, by what it printed on standard output, and the key that it asks for."""

    text: str
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
    command = [*QUIRE, "serve", "--port", "0", *(("--api-key", key) if key else ())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "Ctrl-C stops it.\n":
                break
        try:
            yield Served(text, key)
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_the_addresses_that_it_prints_answer(served: Served) -> None:
    assert served.text.startswith("\nquire-chat is served.\n")
    with openai.OpenAI(base_url=served.after("OpenAI's API"), api_key=served.key or "none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["quire-chat"]
    with Client(served.after("gRPC"), api_key=served.key) as typed:
        assert [model.name for model in typed.models()] == ["quire-chat"]
    with urllib.request.urlopen(served.after("metrics")) as response:
        assert b"vllm:num_requests_running" in response.read()


def test_the_curl_line_that_it_prints_streams_an_answer(served: Served) -> None:
    result = subprocess.run(
        ["sh", "-c", served.command("curl")], env=served.environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert '"delta":{"content":"' in result.stdout.replace(" ", "")
    assert result.stdout.endswith("data: [DONE]\n\n")


def test_the_chat_that_it_prints_answers(served: Served) -> None:
    command = [*QUIRE, *shlex.split(served.command("quire chat"))[1:]]
    result = subprocess.run(
        command, input="Hello!\n", env=served.environment, cwd=ROOT, capture_output=True, text=True, timeout=60
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
