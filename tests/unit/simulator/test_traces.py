from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.simulator.traces import Request, TraceError, poisson, read_trace

SHARED = Path(__file__).parents[4] / "shared" / "traces"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_azure_s_columns(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:05.5000000,30,4",
        "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:03.9799600,7,0",
    )  # fmt: skip
    first, second, third = read_trace(trace)
    assert (first.arrival_s, first.num_prompt_tokens, first.num_output_tokens) == (0, 4808, 10)
    assert second.num_output_tokens == 1
    assert third.arrival_s == pytest.approx(1.52004, abs=1e-5)
    assert first.token_ids[:16] != second.token_ids[:7]
    assert len(first.token_ids) == 4808


def test_mooncake_s_prompts_begin_alike_where_their_hashes_do(tmp_path: Path) -> None:
    def row(seconds: int, length: int, *hashes: int) -> str:
        return json.dumps({"timestamp": 1000 * seconds, "input_length": length, "output_length": 3, "hash_ids": hashes})

    first, second = read_trace(write(tmp_path / "t.jsonl", row(10, 1100, 1, 2, 3), row(13, 1000, 1, 4)))
    assert second.arrival_s == 3
    one, other = first.token_ids, second.token_ids
    assert (len(one), len(other)) == (1100, 1000)
    assert one[:512] == other[:512]
    assert one[512] != other[512]
    assert first.beginning != second.beginning


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["TIMESTAMP,ContextTokens", "x,1"], "line 1: there is no column GeneratedTokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:05,many,4"], "line 2: .*many"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:05,0,4"], "line 2: a prompt of 0 tokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:05"], "line 2"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "no requests"),
        (['{"timestamp": 1}'], "line 1: there is no hash_ids"),
        (['{"timestamp": 1,'], "line 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read_trace(write(tmp_path / "t", *lines))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(TraceError, match="nowhere"):
        read_trace(Path("/nowhere"))


def test_poisson_s_rate_and_lengths() -> None:
    requests = poisson(20, 500, 100, 40, spread=0.5, seed=3)
    assert len(requests) == pytest.approx(10_000, rel=0.05)
    assert requests == poisson(20, 500, 100, 40, spread=0.5, seed=3)
    assert sum(request.num_prompt_tokens for request in requests) / len(requests) == pytest.approx(100, rel=0.02)
    assert {50 <= request.num_prompt_tokens <= 150 for request in requests} == {True}
    assert len({request.content for request in requests}) == len(requests)


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded traces are not here")
def test_recorded_traces() -> None:
    azure = read_trace(SHARED / "azure_code_2023.csv")
    mooncake = read_trace(SHARED / "mooncake_synthetic.jsonl")
    assert (len(azure), len(mooncake)) == (8819, 3993)
    assert 3400 < azure[-1].arrival_s < 3600
    for request in mooncake[:100]:
        assert len(request.content) == -(-request.num_prompt_tokens // 512)
    assert isinstance(azure[0], Request)
