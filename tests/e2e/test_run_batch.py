"""`quire run-batch` with the bundled model: a stack of its own, which is stopped and killed while it works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from tests.e2e.conftest import ROOT, Server
from tests.e2e.parts import part_of
from tests.e2e.worker_script import WorkerScript, go_on, stop_at, wait_stopped
from tests.fakes.waiting import HANG_S, wait_until
from tests.unit.cli.processes import until_ended, with_environment

PROMPTS = [f"Count from {number} to 60." for number in range(24)]
GREEDY = {"temperature": 0, "max_tokens": 100, "ignore_eos": True}


def undisturbed(server: Server) -> list[str]:
    """The answers to all prompts in one request."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
    answer = client.completions.create(
        model=server.model, prompt=PROMPTS, temperature=0, max_tokens=100, extra_body={"ignore_eos": True}
    )
    return [choice.text for choice in answer.choices]


def batch_line(number: int, prompt: str) -> str:
    body = {"model": "quire-chat", "prompt": prompt, **GREEDY}
    return json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n"


@contextmanager
def run_batch(directory: Path, *options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "quire.cli.main", "run-batch", "-i", f"{directory}/in", "-o", f"{directory}/out")
    words = (*command, "--kv-cache-memory-bytes", str(64 << 20), "--num-threads", "1", *options)
    environment = {**os.environ, "QUIRE_TEST_OF": str(directory), **variables}
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def stopped_batch(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A batch with at least one more answer than before, whose worker stands still amid others, and the worker."""
    before, script = num_lines(directory / "out"), WorkerScript(directory)
    with run_batch(directory, "--max-concurrency", "2", **script.environment) as process:
        # Read and written, so that it opens although nobody reads it yet.
        with os.fdopen(os.open(directory / "in", os.O_RDWR), "w") as lines:
            for number, prompt in enumerate(PROMPTS):
                if number == before + 1:  # the first new answer shows that the worker is there
                    lines.flush()
                    wait_until(lambda: process.poll() is not None or num_lines(directory / "out") > before)
                    assert process.poll() is None, process.communicate()[1]
                    worker = part_of(process.pid, "worker")
                    script.give(worker, stop_at(num_sequences=1, num_tokens=50))
                lines.write(batch_line(number, prompt))
            lines.flush()
            wait_stopped(worker, [])
        try:
            yield process, worker
        finally:
            go_on(worker)


async def test_a_stopped_and_killed_batch_goes_on_and_survives_its_worker(tmp_path: Path, server: Server) -> None:
    """Answers are those that `quire serve` gives to the same prompts."""
    os.mkfifo(tmp_path / "in")
    with stopped_batch(tmp_path) as (process, worker):
        process.send_signal(signal.SIGINT)
        go_on(worker)
        _, told = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, told
    assert told.endswith("some requests have no answer; start it again with the same files to continue\n")

    with stopped_batch(tmp_path) as (process, worker):
        process.kill()
    kept = (tmp_path / "out").read_bytes()
    await until_ended(with_environment(f"QUIRE_TEST_OF={tmp_path}"))
    assert 2 <= kept.count(b"\n") < len(PROMPTS)

    with stopped_batch(tmp_path) as (process, worker):
        os.kill(worker, signal.SIGKILL)
        _, told = process.communicate(timeout=HANG_S)

    assert process.returncode == 0, told
    assert re.search(rf"out: 24 answers, {kept.count(chr(10).encode())} of them from an earlier run; 0 failed", told)
    assert "worker: was killed by SIGKILL; starting it again" in told
    data = (tmp_path / "out").read_bytes()
    assert data.startswith(kept)
    answers: list[Any] = [json.loads(line) for line in data.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [str(number) for number in range(24)]
    assert all(answer["response"]["request_id"] for answer in answers)
    by_batch = [answer["response"]["body"]["choices"][0]["text"] for answer in answers]
    assert by_batch == undisturbed(server)


def test_a_batch_asks_whatever_the_gateway_serves(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "What is 7 plus 5?"}], "temperature": 0}
    lines: list[dict[str, Any]] = [
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "tokens", "method": "POST", "url": "/tokenize", "body": {"prompt": "Hello"}},
        {"custom_id": "nowhere", "method": "POST", "url": "/v1/nowhere", "body": {}},
        {"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "n": 0}},
        {"custom_id": "stream", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "stream": True}},
    ]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with run_batch(tmp_path, "--api-key", "a-key") as process:
        _, told = process.communicate(timeout=HANG_S)

    assert process.returncode == 1
    assert "out: 5 answers; 3 failed" in told
    answers: dict[str, Any] = {}
    for line in (tmp_path / "out").read_text().splitlines():
        answer = json.loads(line)
        answers[answer["custom_id"]] = answer
    assert answers["chat"]["response"]["body"]["choices"][0]["message"]["content"].endswith("12.")
    assert answers["tokens"]["response"]["body"]["count"] > 0
    assert answers["nowhere"]["response"]["status_code"] == 404
    assert answers["bad"]["response"]["body"]["error"]["param"] == "n"
    assert answers["stream"]["error"]["code"] == "stream_not_supported"


def test_a_batch_whose_model_is_not_there_fails_with_the_parts_own_reason(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(batch_line(0, "x"))
    with run_batch(tmp_path, "--model", "/nowhere") as process:
        _, told = process.communicate(timeout=HANG_S)

    assert process.returncode == 1
    assert told.endswith("quire run-batch: worker failed: there is no directory /nowhere\n")
