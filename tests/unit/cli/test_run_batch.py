"""`quire run-batch`: its options, and servers that it is told to ask."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quire.batch import server as server_module
from quire.cli.run_batch import main
from tests.fakes.launchers import interruptible
from tests.fakes.waiting import HANG_S
from tests.unit.bench.scripted_server import serving, whole


def request(custom_id: str, **body: object) -> str:
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": {"input": "x", **body}}
    return json.dumps(line) + "\n"


async def answered(head: str, body: bytes, connection: asyncio.Transport) -> None:
    """Everything but what is `bad`."""
    path, status = head.split(" ")[1], "400 Bad Request" if b'"bad"' in body else "200 OK"
    connection.write(whole(json.dumps({"path": path, "asked": json.loads(body)}).encode(), status))


def files(directory: Path, *lines: str) -> list[str]:
    (directory / "in").write_text("".join(lines))
    return ["-i", str(directory / "in"), "-o", str(directory / "out")]


def bodies(directory: Path) -> list[object]:
    return [json.loads(line)["response"]["body"] for line in (directory / "out").read_text().splitlines()]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "out"], "--input-file is missing"),
        (["-i", "in"], "--output-file is missing"),
        (["-i", "in", "-o", "out", "--max-concurrency", "0"], "--max-concurrency is 0: use at least 1"),
        (["-i", "in", "-o", "out", "--base-url", "host:1"], "'host:1' is not a URL"),
        (["-i", "in", "-o", "out", "--base-url", "http://h", "--model", "m"], "--model configures a new stack"),
        (["-i", "in", "-o", "out", "--base-url", "http://h", "--dtype", "auto"], "--dtype configures a new stack"),
        (["-i", "in", "-o", "out", "--port", "8000"], "--port is for quire serve; the stack of run-batch listens on"),
        (["-i", "in", "-o", "out", "--block-size", "x"], "--block-size is 'x': use a whole number"),
        (["-i", "in", "-o", "out", "--scheduler", "x"], "--scheduler is for parts started one by one"),
    ],
)
def test_bad_options_are_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2

    assert told in capsys.readouterr().err


def test_help_has_the_stacks_options_and_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    named = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {"--input-file", "--model", "--base-url", "--max-concurrency", "--max-model-len", "--dtype"} <= named
    assert not {"--host", "--port", "--listen", "--status-fd"} & named


@pytest.mark.parametrize("suffix", ["", "/v1/"])
async def test_a_running_server_is_asked(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with serving(answered) as running:
        words = [*files(tmp_path, request("a"), request("b", dimensions=3)), "--base-url", running.url + suffix]
        assert await asyncio.to_thread(main, words) == 0

    assert bodies(tmp_path) == [
        {"path": "/v1/embeddings", "asked": {"input": "x"}},
        {"path": "/v1/embeddings", "asked": {"input": "x", "dimensions": 3}},
    ]
    assert re.search(r"out: 2 answers; 0 failed; \d+\.\d s\n$", capsys.readouterr().err)


async def test_a_failure_is_in_the_exit_status_and_stays_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(answered) as running:
        words = [*files(tmp_path, request("a"), "nonsense\n", request("b", bad=1)), "--base-url", running.url]
        assert await asyncio.to_thread(main, words) == 1
    assert "out: 3 answers; 2 failed;" in capsys.readouterr().err

    # Nothing is left to ask, so that nobody needs to be there.
    assert await asyncio.to_thread(main, words) == 1
    assert "out: 3 answers, 3 of them from an earlier run; 2 failed;" in capsys.readouterr().err


async def test_the_key_comes_from_an_option_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        keys.append(re.findall(r"Authorization: Bearer (\S+)", head))
        await answered(head, body, connection)

    async with serving(script) as running:
        base = ["--base-url", running.url]
        monkeypatch.setenv("OPENAI_API_KEY", "from-openai")
        await asyncio.to_thread(main, [*files(tmp_path, request("a")), *base])
        monkeypatch.setenv("QUIRE_API_KEY", "from-quire")
        await asyncio.to_thread(main, [*files(tmp_path, request("a"), request("b")), *base])
        words = [*files(tmp_path, request("a"), request("b"), request("c")), *base, "--api-key", "given"]
        await asyncio.to_thread(main, words)

    assert keys == [["from-openai"], ["from-quire"], ["given"]]


async def test_a_server_that_goes_away_leaves_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "FIRST_DELAY_S", 0.001)
    words = [*files(tmp_path, request("a")), "--base-url", "http://127.0.0.1:1", "--retry-timeout", "0.01"]

    assert await asyncio.to_thread(main, words) == 1

    (line,) = (tmp_path / "out").read_text().splitlines()
    assert json.loads(line)["error"]["code"] == "unavailable"


def test_files_that_cannot_be_used_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--base-url", "http://127.0.0.1:1"]
    assert main(["-i", str(tmp_path / "none"), "-o", str(tmp_path / "out"), *base]) == 2
    assert capsys.readouterr().err == f"quire run-batch: {tmp_path}/none cannot be read: No such file or directory\n"
    assert not (tmp_path / "out").exists()

    (tmp_path / "in").write_text(request("a"))
    (tmp_path / "same").hardlink_to(tmp_path / "in")
    assert main(["-i", str(tmp_path / "in"), "-o", str(tmp_path / "same"), *base]) == 1
    assert "are the same file" in capsys.readouterr().err
    assert (tmp_path / "in").read_text() == request("a")


async def test_lines_go_through_pipes(tmp_path: Path) -> None:
    async with serving(answered) as running:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quire.cli.main", "run-batch", "-i", "-", "-o", "-", "--base-url", running.url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request("a").encode())
        first = json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_S))
        rest, told = await asyncio.wait_for(process.communicate(request("b").encode()), HANG_S)

    assert first["custom_id"] == "a"
    assert [json.loads(line)["custom_id"] for line in rest.splitlines()] == ["b"]
    assert process.returncode == 0
    assert b"standard output: 2 answers; 0 failed" in told


async def test_an_interrupted_run_tells_how_to_go_on(tmp_path: Path) -> None:
    has_second = asyncio.Event()

    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        if b'"wait"' in body:
            has_second.set()
            await asyncio.Event().wait()
        await answered(head, body, connection)

    words = files(tmp_path, request("a"), request("b", wait=1))
    async with serving(script) as running:
        process = await asyncio.create_subprocess_exec(
            *interruptible(sys.executable, "-m", "quire.cli.main", "run-batch", *words, "--base-url", running.url),
            stderr=subprocess.PIPE,
        )
        await has_second.wait()
        while not os.path.getsize(tmp_path / "out"):  # noqa: ASYNC240, ASYNC110 - nobody tells when it has grown
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = await asyncio.wait_for(process.communicate(), HANG_S)

    assert process.returncode == 130
    assert b"out: 1 answers; 0 failed" in told
    assert told.endswith(b"some requests have no answer; start it again with the same files to continue\n")
