"""`quire bench serve`: its options, and servers that it cannot measure."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from quire.cli.bench import main
from tests.unit.bench.scripted_server import serving, whole


@pytest.mark.parametrize("words", [["run"], [], ["--model", "x"]])
def test_what_is_no_benchmark_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)

    assert stopped.value.code == 2
    assert "usage: quire bench" in capsys.readouterr().err


def test_help_names_vllm_s_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--help"])

    assert stopped.value.code == 0
    names = (
        "base-url host port endpoint model dataset-name dataset-path random-input-len random-output-len "
        "random-range-ratio sharegpt-output-len num-prompts num-warmups request-rate burstiness max-concurrency seed "
        "ignore-eos temperature percentile-metrics metric-percentiles goodput save-result result-dir result-filename"
    )
    assert {f"--{name}" for name in names.split()} <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--request-rate", "0"], "--request-rate is 0.0: use more than 0"),
        (["--request-rate", "nan"], "--request-rate is nan"),
        (["--burstiness", "-1"], "--burstiness is -1.0"),
        (["--random-range-ratio", "1"], "--random-range-ratio is 1.0: use less than 1"),
        (["--random-range-ratio", "nan"], "--random-range-ratio is nan"),
        (["--dataset-path", "file"], "--dataset-path is for --dataset-name sharegpt"),
        (["--dataset-name", "sharegpt", "--dataset-path", "/nowhere"], "No such file"),
        (["--endpoint", "/v1/embeddings"], "--endpoint is '/v1/embeddings': use one of /v1/completions"),
        (["--percentile-metrics", "ttft,tbt"], "--percentile-metrics names 'tbt'"),
        (["--metric-percentiles", "50,101"], "--metric-percentiles is '50,101'"),
        (["--metric-percentiles", "half"], "--metric-percentiles is 'half'"),
        (["--goodput", "ttft"], "--goodput is 'ttft'"),
        (["--goodput", "ttft:soon"], "--goodput is 'ttft:soon'"),
        (["--goodput", "itl:3"], "--goodput is 'itl:3'"),
        (["--base-url", "127.0.0.1:8000"], "'127.0.0.1:8000' is not a URL"),
        (["--base-url", "ftp://127.0.0.1"], "'ftp://127.0.0.1' is not a URL"),
        (["--base-url", "http://"], "is not a URL"),
        (["--base-url", "http://host:99999999"], "is not a URL"),
        (["--base-url", "http://[host"], "is not a URL"),
        (["--base-url", "http://name:password@host"], "is not a URL"),
        (["--max-concurrency", "0"], "use at least 1"),
        (["--api-key", "a b"], "a character that an HTTP header cannot contain"),
    ],
)
def test_a_bad_option_is_told(words: list[str], told: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", *words])

    assert told in str(stopped.value.code)


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "QUIRE_API_KEY"])
async def test_the_key_is_the_environment_s(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = []

    async def refuse(head: str, body: bytes, connection: asyncio.Transport) -> None:
        heads.append(head)
        connection.write(whole(b'{"error": {"message": "wrong key"}}', "401 Unauthorized"))

    monkeypatch.setenv(variable, "a-key")
    async with serving(refuse) as server:
        assert await asyncio.to_thread(main, ["serve", "--base-url", server.url]) == 1

    assert len(heads) == 1
    assert "\r\nAuthorization: Bearer a-key\r\n" in heads[0]
    assert "/v1/models answers 401: wrong key" in capsys.readouterr().err


def test_no_server_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--base-url", "http://127.0.0.1:1/v1"]) == 1
    assert capsys.readouterr().err == (
        "quire bench serve: no server answers at http://127.0.0.1:1; start one with: quire serve\n"
    )


def test_where_nothing_succeeds_the_first_error_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--port", "1", "--model", "x", "--random-vocab-size", "9", "--num-prompts", "3", "--num-warmups", "1"]

    assert main(["serve", *words, "--save-result", "--result-dir", str(tmp_path), "--result-filename", "file"]) == 1
    told = capsys.readouterr()
    assert re.search(r"^Failed requests: +3$", told.out, re.MULTILINE)
    assert told.err.startswith("quire bench serve: 3 requests failed, the first: no connection: ")
    assert json.loads((tmp_path / "file").read_text())["failed"] == 3


def test_a_result_that_cannot_be_saved_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    words = ["--port", "1", "--model", "x", "--random-vocab-size", "9", "--num-prompts", "1", "--save-result"]

    assert main(["serve", *words, "--result-dir", str(tmp_path / "file")]) == 1
    assert "the results were not saved: " in capsys.readouterr().err
