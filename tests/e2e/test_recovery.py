"""Parts die while answers stream. The client sees a pause, and the text of an undisturbed run."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.conftest import Server, serving
from tests.e2e.parts import metric, num_sequences, pid_of
from tests.e2e.under_way import LONG_PROMPTS, NUM_SEQUENCES, SCHEMA, answers
from tests.e2e.worker_script import go_on, standing_still, stop_at, wait_stopped
from tests.fakes.waiting import HANG_S, wait_until

PROMPT = "Count from 1 to 60."


@pytest.fixture(scope="module")
def fragile() -> Iterator[Server]:
    """A stack of its own, so that its restarts disturb no other test. It bears three a minute of each part."""
    with serving("--max-num-batched-tokens", "64", "--reasoning-parser", "think", model="quire-chat") as running:
        yield running


def answer(server: Server, max_tokens: int = 250) -> str:
    """A greedy answer, streamed."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
    stream = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def answer_without(server: Server, victim: str) -> str:
    """The same answer, whose `victim` is killed when the answer has ten tokens."""
    worker = pid_of("worker", server)
    server.script.give(worker, stop_at(num_sequences=1, num_tokens=10))
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(answer, server)
        wait_stopped(worker, [asked])
        os.kill(pid_of(victim, server), signal.SIGKILL)
        go_on(worker)
        return asked.result()


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
def test_an_answer_goes_on_when_a_part_dies(fragile: Server, victim: str) -> None:
    undisturbed = answer(fragile)
    assert answer_without(fragile, victim) == undisturbed


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
    # Only a lost scheduler makes the router submit sequences again: all of them, as none had ended.
    expected = NUM_SEQUENCES if victim == "scheduler" else 0
    assert metric(fragile, "quire:resubmissions_total") - before == expected


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
    client = openai.OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
    wait_until(lambda: not num_sequences(fragile))
    worker = pid_of("worker", fragile)
    # A worker that stands still has prepared nothing.
    with standing_still(worker), ThreadPoolExecutor(1) as thread:
        asked = thread.submit(
            client.completions.create, model=fragile.model, prompt="So", temperature=0, max_tokens=60,
            extra_body={"guided_regex": f"the {victim} went, [a-z]{{20}}"},
        )  # fmt: skip
        wait_until(lambda: asked.done() or num_sequences(fragile) == 1)
        assert not asked.done()
        os.kill(pid_of(victim, fragile), signal.SIGKILL)
        go_on(worker)
        (choice,) = asked.result().choices
    assert re.fullmatch(f"the {victim} went, [a-z]{{20}}", choice.text)
    assert choice.finish_reason == "stop"


def test_a_dead_router_costs_the_answers_it_was_giving_and_no_others(fragile: Server) -> None:
    undisturbed = answer(fragile)
    with pytest.raises(openai.APIError):
        answer_without(fragile, "router")
    client = openai.OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=8)
    client.models.list()
    assert answer(fragile) == undisturbed
