"""Parts die while answers stream. The client sees a pause, and the text of an undisturbed run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import Server, serving

PROMPT = "Count from 1 to 60."


@pytest.fixture(scope="module")
def fragile() -> Iterator[Server]:
    """A stack of its own, so that its restarts disturb no other test."""
    with serving(model="quire-chat") as running:
        yield running


def pid_of(part: str, server: Server) -> int:
    """The process of one part of the stack that `quire serve` runs."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == server.pid and part in words:
            return int(entry.name)
    raise AssertionError(f"{part} does not run")


def answer(server: Server, victim: str | None = None) -> str:
    """A greedy answer, whose `victim` is killed once its text has begun."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
    stream = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_tokens=250,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = []
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
        if victim is not None and len(pieces) == 10:
            os.kill(pid_of(victim, server), signal.SIGKILL)
            victim = None
    assert victim is None
    return "".join(pieces)


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
def test_an_answer_goes_on_when_a_part_dies(fragile: Server, victim: str) -> None:
    undisturbed = answer(fragile)
    assert answer(fragile, victim) == undisturbed


def test_a_dead_router_costs_the_answers_it_was_giving_and_no_others(fragile: Server) -> None:
    undisturbed = answer(fragile)
    with pytest.raises(openai.APIError):
        answer(fragile, "router")
    client = openai.OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=8)
    client.models.list()
    assert answer(fragile) == undisturbed
