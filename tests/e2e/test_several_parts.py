"""`quire serve` with several routers, schedulers and workers on one host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import Server, serving
from tests.fakes.waiting import HANG_S, wait_until
from tests.unit.cli.processes import children

PROMPTS = [f"Count from {start} to {start + 40}." for start in range(8)]
NAMES = ["gateway", *(f"{kind}-{index}" for kind in ("router", "scheduler", "worker") for index in range(2))]


@pytest.fixture(scope="module")
def several() -> Iterator[Server]:
    with serving("--routers", "2", "--schedulers", "2", "--data-parallel-size", "2", model="quire-chat") as running:
        yield running


def answer(server: Server, prompt: str) -> str:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
    stream = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=100,
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def answers(server: Server) -> list[str]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: answer(server, prompt), PROMPTS))


def processes(server: Server) -> dict[str, int]:
    """The process id of each part, by its name."""
    found = {}
    for pid in children(server.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--listen" in words:
                found[Path(words[words.index("--listen") + 1]).stem] = pid
            elif "gateway" in words:
                found["gateway"] = pid
    return found


def test_several_parts_of_each_kind_give_the_answers_of_one(server: Server, several: Server) -> None:
    assert sorted(processes(several)) == sorted(NAMES)
    assert answers(several) == answers(server)


@pytest.mark.parametrize("victim", ["worker-1", "scheduler-0", "router-1"])
def test_a_part_that_is_killed_is_started_again_alone(several: Server, victim: str) -> None:
    undisturbed, before = answers(several), processes(several)
    os.kill(before[victim], signal.SIGKILL)
    wait_until(lambda: processes(several).get(victim, before[victim]) != before[victim], 0.05)
    assert answers(several) == undisturbed
    after = processes(several)
    assert {name for name in NAMES if after.get(name) != before[name]} == {victim}
