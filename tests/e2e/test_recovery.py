"""Parts die while answers stream. The client sees a pause, and the text of an undisturbed run."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.conftest import Server, serving
from tests.e2e.under_way import LONG_PROMPTS, SCHEMA, answers, metric, pid_of

PROMPT = "Count from 1 to 60."


@pytest.fixture(scope="module")
def fragile() -> Iterator[Server]:
    """A stack of its own, so that its restarts disturb no other test. It bears three a minute of each part."""
    with serving("--max-num-batched-tokens", "64", "--reasoning-parser", "think", model="quire-chat") as running:
        yield running


def answer(server: Server, victim: str | None = None, max_tokens: int = 250) -> str:
    """A greedy answer, whose `victim` is killed once its text has begun."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
    stream = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_tokens=max_tokens,
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


@pytest.fixture(scope="module")
def undisturbed(fragile: Server) -> dict[str, Any]:
    return answers(fragile)


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
def test_whatever_was_asked_is_answered_when_a_part_dies(
    fragile: Server, undisturbed: dict[str, Any], victim: str
) -> None:
    before = metric(fragile, "quire:resubmissions_total")
    disturbed = answers(fragile, victim)
    for name, answer in undisturbed.items():
        assert disturbed[name] == answer, name
    # Only a lost scheduler makes the router submit sequences again. How many are left by then depends on the machine.
    assert (metric(fragile, "quire:resubmissions_total") > before) == (victim == "scheduler")


def test_undisturbed_answers_are_what_was_asked_for(undisturbed: dict[str, Any]) -> None:
    for name in ("schema", "sampled schema", "tool"):
        _, choices = undisturbed[name]
        for choice in choices:
            assert choice["finish_reason"] == ("tool_calls" if name == "tool" else "stop")
            text = choice["message"]["content"] or choice["message"]["tool_calls"][0]["function"]["arguments"]
            jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))
    for name in ("sampled schema", "choices"):
        num_tokens, choices = undisturbed[name]
        assert len(choices) == 2
        assert choices[0]["message"] != choices[1]["message"]
        assert sum(len(choice["logprobs"]["content"]) for choice in choices) == num_tokens
    _, (stopped,) = undisturbed["stop string"]
    assert len(stopped["message"]["content"]) == 90 * 6
    _, (reasoned,) = undisturbed["reasoning"]
    assert len(reasoned["message"]["reasoning_content"]) >= 300
    for choice in undisturbed["prompt"]:
        assert len(choice["logprobs"]["token_logprobs"]) == len(LONG_PROMPTS[0]) + 20
    assert len(undisturbed["embeddings"]) == len(LONG_PROMPTS)


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
def test_who_waits_for_a_grammar_when_a_part_dies_is_answered(fragile: Server, victim: str) -> None:
    client = openai.OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=0, timeout=60)
    while metric(fragile, "vllm:num_requests_waiting"):  # as the scheduler said a moment ago
        pass
    # A worker that stands still has prepared nothing.
    worker = pid_of("worker", fragile)
    os.kill(worker, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(
                client.completions.create, model=fragile.model, prompt="So", temperature=0, max_tokens=60,
                extra_body={"guided_regex": f"the {victim} went, [a-z]{{20}}"},
            )  # fmt: skip
            while not asked.done() and not metric(fragile, "vllm:num_requests_waiting"):
                pass
            os.kill(pid_of(victim, fragile), signal.SIGKILL)
            if victim != "worker":
                os.kill(worker, signal.SIGCONT)
            (choice,) = asked.result().choices
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    assert re.fullmatch(f"the {victim} went, [a-z]{{20}}", choice.text)
    assert choice.finish_reason == "stop"


def test_a_dead_router_costs_the_answers_it_was_giving_and_no_others(fragile: Server) -> None:
    undisturbed = answer(fragile)
    with pytest.raises(openai.APIError):
        answer(fragile, "router", max_tokens=1500)  # more than is on its way to a client that is slow to read
    client = openai.OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=8)
    client.models.list()
    assert answer(fragile) == undisturbed
