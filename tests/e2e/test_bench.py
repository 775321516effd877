"""`quire bench serve` against the whole stack: it counts what the server counts."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO, Any

import pytest

from quire.bench import sharegpt
from tests.e2e.conftest import ROOT, Server
from tests.fakes.waiting import HANG_S

LABELS = [
    "Successful requests", "Failed requests", "Benchmark duration (s)", "Total input tokens", "Total generated tokens",
    "Request throughput (req/s)", "Output token throughput (tok/s)", "Peak output token throughput (tok/s)",
    "Peak concurrent requests", "Total token throughput (tok/s)",
    *(f"{kind} {name} (ms)" for name in ("TTFT", "TPOT", "ITL", "E2EL") for kind in ("Mean", "Median", "P99")),
]  # fmt: skip


def command(server: Server, *options: str) -> list[str]:
    return [sys.executable, "-m", "quire.cli.main", "bench", "serve", "--base-url", f"{server.url}/v1", *options]


def bench(server: Server, directory: Path, *options: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The table's fields and the file's."""
    saved = ("--save-result", "--result-dir", str(directory), "--result-filename", "result.json")
    done = subprocess.run(
        command(server, *options, *saved), cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return fields(done.stdout), json.loads((directory / "result.json").read_text())


def fields(table: str) -> dict[str, str]:
    return dict(re.findall(r"^(.+): +([\d.]+)$", table, re.MULTILINE))


def tokens_served(server: Server) -> tuple[int, int]:
    """Prompt and output tokens since the server's start, by its own metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics") as metrics:
        text = metrics.read().decode()
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    prompt, output = (
        sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)) for name in names
    )
    return int(prompt), int(output)


def test_random_prompts_are_counted_token_by_token(server: Server, tmp_path: Path) -> None:
    before = tokens_served(server)
    table, result = bench(
        server, tmp_path, "--num-prompts", "12", "--random-input-len", "20", "--random-output-len", "8",
        "--max-concurrency", "3", "--num-warmups", "2", "--goodput", "e2el:100000",
    )  # fmt: skip
    after = tokens_served(server)

    assert set(table) >= set(LABELS)
    assert table["Successful requests"] == "12"
    assert table["Maximum request concurrency"] == "3"
    assert (table["Total input tokens"], table["Total generated tokens"]) == ("240", "96")
    assert (after[0] - before[0], after[1] - before[1]) == (14 * 20, 14 * 8)
    assert (result["completed"], result["failed"], result["model_id"]) == (12, 0, server.model)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (240, 96)
    assert 1 <= result["max_concurrent_requests"] <= 3
    assert result["output_throughput"] == pytest.approx(96 / result["duration"])
    assert result["total_token_throughput"] == pytest.approx(336 / result["duration"])
    assert result["request_goodput"] == result["request_throughput"] == pytest.approx(12 / result["duration"])
    # On a busy machine, all chunks of an answer may be read at once.
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"] <= 1000 * result["duration"]
    # What follows the first token takes 7 times as long as a token.
    assert result["mean_e2el_ms"] - result["mean_ttft_ms"] == pytest.approx(7 * result["mean_tpot_ms"])


def test_lengths_that_vary_add_up_to_what_the_server_counts(server: Server, tmp_path: Path) -> None:
    before = tokens_served(server)
    _, result = bench(
        server, tmp_path, "--num-prompts", "10", "--random-input-len", "30", "--random-output-len", "10",
        "--random-range-ratio", "0.5", "--random-vocab-size", "900", "--request-rate", "50", "--seed", "3",
    )  # fmt: skip
    after = tokens_served(server)

    assert result["completed"] == 10
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (after[0] - before[0], after[1] - before[1])
    assert 150 <= result["total_input_tokens"] <= 450
    assert 50 <= result["total_output_tokens"] <= 150
    assert result["request_rate"] == 50.0
    assert result["duration"] >= 0.2  # when the last request is sent


def test_a_chat_with_random_prompts(server: Server, tmp_path: Path) -> None:
    before = tokens_served(server)
    table, result = bench(
        server, tmp_path, "--endpoint", "/v1/chat/completions", "--num-prompts", "6", "--random-input-len", "20",
        "--random-output-len", "8", "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,90",
    )  # fmt: skip
    after = tokens_served(server)

    assert (result["completed"], result["backend"]) == (6, "openai-chat")
    assert result["total_output_tokens"] == after[1] - before[1] == 48
    # The template and the way through text add some.
    assert result["total_input_tokens"] == after[0] - before[0] > 120
    assert {"P50 TTFT (ms)", "P90 TTFT (ms)", "P50 E2EL (ms)", "P90 E2EL (ms)"} <= table.keys()
    assert not any("TPOT" in label or "P99" in label for label in table)


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_sharegpt_s_questions(server: Server, tmp_path: Path, endpoint: str) -> None:
    questions = ["What is 7 plus 5?", "Count from 3 to 9.", "Hi", "Tell me a story about a fox. " * 400]
    entries = [
        {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "That is a long answer. "}]}
        for question in questions
    ]
    (tmp_path / "sharegpt.json").write_text(json.dumps(entries))
    before = tokens_served(server)
    _, result = bench(
        server, tmp_path, "--endpoint", endpoint, "--dataset-name", "sharegpt", "--dataset-path",
        str(tmp_path / "sharegpt.json"), "--num-prompts", "6", "--sharegpt-output-len", "3", "--temperature", "0",
        "--ignore-eos",
    )  # fmt: skip
    after = tokens_served(server)

    assert result["completed"] == 6
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (after[0] - before[0], 18)
    assert result["total_input_tokens"] < 6 * 100  # the long one was left out


def test_an_unknown_model_fails_every_request(server: Server) -> None:
    options = ("--model", "none", "--random-vocab-size", "900", "--num-prompts", "4")
    done = subprocess.run(
        command(server, *options), cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert done.returncode == 1
    assert fields(done.stdout)["Failed requests"] == "4"
    assert "4 requests failed, the first: HTTP status 404: The model `none` does not exist." in done.stderr


def test_ctrl_c_tells_what_came_until_then(server: Server) -> None:
    options = (
        "--num-prompts",
        "100000",
        "--max-concurrency",
        "2",
        "--random-input-len",
        "8",
        "--random-output-len",
        "4",
    )
    before = tokens_served(server)
    with subprocess.Popen(
        command(server, *options), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while tokens_served(server)[1] < before[1] + 100 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)

    assert (process.returncode, err) == (130, "")
    told = fields(out)
    assert 20 <= int(told["Successful requests"]) < 100_000
    assert told["Failed requests"] == "0"
    assert int(told["Total generated tokens"]) == 4 * int(told["Successful requests"])


def test_a_terminal_shows_how_many_requests_have_ended(server: Server) -> None:
    options = ("--num-prompts", "8", "--random-input-len", "8", "--random-output-len", "4")
    assert b"8/8" in shown_in_a_terminal(command(server, *options))


def shown_in_a_terminal(words: list[str], stdout: int | IO[str] = subprocess.DEVNULL) -> bytes:
    """What a command that succeeds writes to its standard error, which is a terminal."""
    terminal, end_of_process = pty.openpty()
    with subprocess.Popen(words, cwd=ROOT, stdout=stdout, stderr=end_of_process) as run:
        os.close(end_of_process)
        shown = b""
        with contextlib.suppress(OSError):  # once nobody has the other end
            while piece := os.read(terminal, 4096):
                shown += piece
    os.close(terminal)
    assert run.returncode == 0
    return shown


def share_gpt(cache: Path) -> None:
    """Puts ShareGPT's file, with conversations of the test's own, where the hub's library keeps its downloads."""
    folder = cache / f"datasets--{sharegpt.REPOSITORY.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    questions = [f"What is {number} plus 5? Please say it in one sentence." for number in range(6)]
    messages = [[{"from": "human", "value": question}, {"from": "gpt", "value": question}] for question in questions]
    conversations = [{"id": str(index), "conversations": each} for index, each in enumerate(messages)]
    (folder / "snapshots" / ("0" * 40) / sharegpt.FILE).write_text(json.dumps(conversations))


def test_the_guides_line_for_a_server(server: Server, tmp_path: Path) -> None:
    """--backend vllm --dataset-name sharegpt --num-prompts 1000 --request-rate 10, with fewer prompts, and faster."""
    share_gpt(tmp_path)
    line = "--backend vllm --dataset-name sharegpt --num-prompts 8 --request-rate 50"
    done = subprocess.run(
        command(server, *line.split()),
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    table = fields(done.stdout)
    assert table["Successful requests"] == "8"
    assert float(table["Request rate configured (RPS)"]) == 50


def test_sharegpt_without_a_hub_says_what_to_do(server: Server, tmp_path: Path) -> None:
    done = subprocess.run(
        command(server, "--dataset-name", "sharegpt"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode != 0
    assert "cannot be downloaded" in done.stderr
    assert "--dataset-path" in done.stderr


# Of the guides, word for word.
SERVE_LINE = "--backend vllm --dataset-name sharegpt --num-prompts 1000 --request-rate 10"
THROUGHPUT_LINE = "--input-len 512 --output-len 128 --num-prompts 1000"
LATENCY_LINE = "--input-len 512 --output-len 128 --batch-size 1"


@pytest.mark.thorough
def test_the_guides_line_for_a_server_runs_as_it_stands(server: Server, tmp_path: Path) -> None:
    share_gpt(tmp_path)
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    words = command(server, *SERVE_LINE.split())
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert fields(done.stdout)["Successful requests"] == "1000"


@pytest.mark.thorough
def test_the_guides_lines_for_a_model_run_as_they_stand(tmp_path: Path) -> None:
    printed, result, _ = own_model("throughput", THROUGHPUT_LINE, tmp_path / "throughput.json")
    assert re.search(r"^Total num output tokens:  128000$", printed, re.MULTILINE)
    assert result["num_requests"] == 1000
    printed, result, _ = own_model("latency", LATENCY_LINE, tmp_path / "latency.json")
    assert f"Avg latency: {result['avg_latency']} seconds" in printed


def own_model(benchmark: str, line: str, output: Path) -> tuple[str, dict[str, Any], bytes]:
    """What a benchmark that starts its own model prints, its file, and what a terminal shows meanwhile."""
    words = [sys.executable, "-m", "quire.cli.main", "bench", benchmark, *line.split(), "--output-json", str(output)]
    with output.with_suffix(".txt").open("w+") as printed:
        shown = shown_in_a_terminal(words, printed)
        printed.seek(0)
        return printed.read(), json.loads(output.read_text()), shown


def test_the_guides_line_for_throughput(tmp_path: Path) -> None:
    """--input-len 512 --output-len 128 --num-prompts 1000, with fewer and shorter prompts."""
    line = "--input-len 48 --output-len 8 --num-prompts 10 --max-model-len 256"
    printed, result, shown = own_model("throughput", line, tmp_path / "result.json")
    assert b"10/10" in shown
    assert re.search(r"^Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s$", printed, re.M)
    assert re.search(r"^Total num prompt tokens:  480$", printed, re.MULTILINE)
    assert re.search(r"^Total num output tokens:  80$", printed, re.MULTILINE)
    assert (result["num_requests"], result["total_num_tokens"]) == (10, 560)
    assert result["tokens_per_second"] == pytest.approx(560 / result["elapsed_time"])


def test_the_guides_line_for_latency(tmp_path: Path) -> None:
    """--input-len 512 --output-len 128 --batch-size 1, with shorter prompts."""
    line = "--input-len 48 --output-len 8 --batch-size 1 --num-iters-warmup 1 --num-iters 3"
    printed, result, shown = own_model("latency", line, tmp_path / "result.json")
    assert b"4/4" in shown
    assert f"Avg latency: {result['avg_latency']} seconds" in printed
    assert re.findall(r"^(\d+)% percentile latency: [\d.e-]+ seconds$", printed, re.M) == [
        "10",
        "25",
        "50",
        "75",
        "90",
        "99",
    ]
    assert len(result["latencies"]) == 3


@pytest.mark.parametrize(
    ("benchmark", "line", "words"),
    [
        ("throughput", "--dataset-name sharegpt --input-len 5", "--input-len is for random prompts"),
        ("throughput", "--dataset-path file", "--dataset-path is for --dataset-name sharegpt"),
        ("throughput", "--port 8000", "gateway"),
        ("latency", "--batch-size 0", "--batch-size"),
        ("latency", "--tensor-parallel-size 2", "--tensor-parallel-size is not implemented yet"),
        ("latency", "--model /nowhere/x", "/nowhere/x"),
    ],
)
def test_bad_options_are_told_in_one_line(benchmark: str, line: str, words: str) -> None:
    command = [sys.executable, "-m", "quire.cli.main", "bench", benchmark, *line.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
