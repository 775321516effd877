"""Every program in examples/ runs against a server and prints what it promises."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Server, serving
from tests.e2e.parts import pid_of
from tests.e2e.test_clients import OFFLINE
from tests.e2e.worker_script import go_on, stop_at, wait_stopped
from tests.fakes.tools import CLIENTS_PYTHON, NODE, needs_clients, needs_node
from tests.fakes.waiting import HANG_S

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What a person types.
INPUT = {"chatbot": "What is 7 plus 5?\nCount from 3 to 9.\n\n"}
# What the output must match as a whole.
OUTPUT = {
    "batch": r"'Once upon a time' -> '.+'\n('.+' -> '.+'\n){3}\d+ prompt tokens, \d+ generated\n",
    "chatbot": r"Chatting with quire-chat\. .*\n> .*12.*\n> .*3.+9.*\n> ",
    "grpc_client": (
        r"models: \['quire-chat'\]\nclient: .*12.*\nwaited [\d.]+ ms in the queue\nstubs: .*12.*\n\d+ tokens\n"
    ),
    "langchain_chat": r"whole: .*12.*\nstreamed: .*5.*\n",
    "load_test": (
        r"40 requests, 8 at a time, in [\d.]+ s\nthroughput: [\d.]+ requests/s, [\d.]+ tokens/s\n"
        r"time to first token: P50 \d+ ms, P99 \d+ ms\nlatency: P50 \d+ ms, P99 \d+ ms\n"
    ),
    "prefix_cache": r".*\? cached_tokens: \d+ of \d+\n.*\? cached_tokens: \d+ of \d+\n",
    "streaming": r".+\n\n\d+ tokens, the first after \d+ ms\n",
}


def output(example: Path, server: Server) -> str:
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT)}
    python = Path(sys.executable)
    if example.stem == "langchain_chat":
        python = CLIENTS_PYTHON
        del environment["PYTHONPATH"]
    result = subprocess.run(
        [python, example, "--url", server.url],
        input=INPUT.get(example.stem, ""), env=environment, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@needs_node()
def test_the_javascript_one_runs(server: Server) -> None:
    program = ROOT / "examples" / "javascript" / "chat.js"
    result = subprocess.run([NODE, program, "--url", server.url], capture_output=True, text=True, timeout=HANG_S)

    assert result.returncode == 0, result.stderr
    missing = r"NOT_FOUND: The model `gpt-none` does not exist\. Served here: `quire-chat`\.\n"
    told = rf"models: quire-chat\n.*12.*\n\d+ tokens\n{missing}"
    assert re.fullmatch(told, result.stdout), result.stdout


@needs_node()
def test_the_javascript_one_asks_again_when_its_router_is_killed() -> None:
    with serving(model="quire-chat") as server, ThreadPoolExecutor(1) as thread:
        program = ROOT / "examples" / "javascript" / "chat.js"
        command: list[str | Path] = [NODE, program, "--url", server.url, "--question", "Count from 1 to 60."]
        undisturbed = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
        worker = pid_of("worker", server)
        server.script.give(worker, stop_at(num_sequences=1, num_tokens=10))
        with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                ended = thread.submit(process.wait)
                wait_stopped(worker, [ended])
                # The gateway repeats a stream that has brought nothing.
                printed = b""
                while len(printed) <= len(b"models: quire-chat\n"):
                    piece = process.stdout.read(65536)
                    assert piece, "it ended"
                    printed += piece
                assert undisturbed.encode().startswith(printed)
                os.kill(pid_of("router", server), signal.SIGKILL)
                go_on(worker)
                rest, errors = process.communicate(timeout=HANG_S)
            finally:
                go_on(worker)
                process.kill()
    assert (process.returncode, (printed + rest).decode()) == (0, undisturbed)
    assert re.fullmatch(r"\d+ INTERNAL: .*RST_STREAM.*; asking again\n", errors.decode()), errors


@pytest.mark.parametrize(
    "example",
    [pytest.param(one, id=one.stem, marks=needs_clients() if one.stem == "langchain_chat" else ()) for one in EXAMPLES],
)
def test_it_runs(example: Path, server: Server) -> None:
    text = output(example, server)

    assert re.fullmatch(OUTPUT[example.stem], text, re.DOTALL), text
    if example.stem == "prefix_cache":
        before, after = map(int, re.findall(r"cached_tokens: (\d+)", text))
        assert before < 100 < after


def test_the_table_names_every_example() -> None:
    table = (ROOT / "examples" / "README.md").read_text()
    named = re.findall(r"^\| \[(\w+)\.py\]", table, re.MULTILINE)
    assert sorted(named) == [example.stem for example in EXAMPLES] == sorted(OUTPUT)
    folders = re.findall(r"^\| \[\w+/\w+\.\w+\]\((\w+/\w+\.\w+)\)", table, re.MULTILINE)
    assert sorted(folders) == ["go/main.go", "javascript/chat.js"]
