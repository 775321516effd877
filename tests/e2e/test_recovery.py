"""Parts die while answers stream. The client sees a pause, and the text of an undisturbed run."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.conftest import Server, serving
from tests.e2e.parts import metric, num_sequences, pid_of
from tests.e2e.under_way import LONG_PROMPTS, NUM_SEQUENCES, SCHEMA, answers
from tests.e2e.worker_script import go_on, lose_device_after, standing_still, stop_at, wait_stopped
from tests.fakes.waiting import HANG_S, wait_until

PROMPT = "Count from 1 to 60."


@pytest.fixture(scope="module")
def fragile() -> Iterator[Server]:
    """A stack of its own, so that its restarts disturb no other test. It bears three a minute of each part."""
    with serving("--max-num-batched-tokens", "64", "--reasoning-parser", "think", model="quire-chat") as running:
        yield running


def answer(server: Server, has_begun: Event | None = None) -> str:
    """A greedy answer, streamed. Sets `has_begun` when its first text arrives."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
    stream = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_tokens=250,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    texts = []
    for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")
        if has_begun is not None and texts[-1]:
            has_begun.set()
    return "".join(texts)


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


def test_an_answer_goes_on_when_the_device_is_lost(fragile: Server) -> None:
    """The worker ends by itself, and `quire serve` starts another: the sequence fails no more than it does when a
    worker is killed."""
    undisturbed, worker = answer(fragile), pid_of("worker", fragile)
    fragile.script.give(worker, lose_device_after(20))
    assert answer(fragile) == undisturbed
    assert pid_of("worker", fragile) != worker


def test_a_dead_router_costs_the_answers_it_was_giving_and_no_others(fragile: Server) -> None:
    undisturbed, worker = answer(fragile), pid_of("worker", fragile)
    fragile.script.give(worker, stop_at(num_sequences=1, num_tokens=10))
    has_begun = Event()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(answer, fragile, has_begun)
        wait_stopped(worker, [asked])
        # The gateway sends a request that has received nothing to the next router.
        assert has_begun.wait(HANG_S)
        os.kill(pid_of("router", fragile), signal.SIGKILL)
        go_on(worker)
        with pytest.raises(openai.APIError):
            asked.result()
    client = openai.OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=8)
    client.models.list()
    assert answer(fragile) == undisturbed
