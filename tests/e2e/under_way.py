"""Runs requests of every kind in parallel while a part is killed, and returns their answers."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.e2e.conftest import Server
from tests.e2e.parts import num_sequences, pid_of
from tests.e2e.worker_script import go_on, standing_still, stop_after, stop_at, wait_stopped
from tests.fakes.waiting import HANG_S, wait_until

Ask = Callable[[], list[Future[Any]]]

# Every output has some hundreds of tokens, so that none is complete when all have 20.
NAMES = {"type": "array", "items": {"type": "string", "minLength": 9, "maxLength": 12}, "minItems": 30, "maxItems": 30}
YEARS = {"type": "array", "items": {"type": "integer", "minimum": 1000, "maximum": 9999}, "minItems": 30}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"names": NAMES, "years": YEARS | {"maxItems": 30}},
    "required": ["names", "years"],
    "additionalProperties": False,
}
# With these options, the structure begins with the first token.
AT_ONCE: dict[str, Any] = {"reasoning_effort": "none", "max_tokens": 1500}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "register", "parameters": SCHEMA}}
COUNT = {"role": "user", "content": "Count from 1 to 60."}
THINKING = {"role": "assistant", "content": "<think>1, 2, 3,"}
FREE = {"ignore_eos": True}
# Bodies of chat completions, all streamed.
STREAMS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": AS_SCHEMA, "temperature": 0} | AT_ONCE,
    "sampled schema": {
        "response_format": AS_SCHEMA, "temperature": 1.2, "seed": 5, "n": 2, "logprobs": True, "top_logprobs": 3,
    } | AT_ONCE,
    "tool": {
        "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0.8, "seed": 6,
    } | AT_ONCE,
    "choices": {
        "n": 2, "temperature": 1.0, "seed": 7, "logprobs": True, "top_logprobs": 2, "max_tokens": 300,
        "frequency_penalty": 0.3, "extra_body": FREE,
    },
    "stop string": {
        "temperature": 0.9, "seed": 8, "stop": ["#never#", "#end#"],
        "extra_body": {"guided_regex": "([a-z]{5} ){90}#end#[a-z]{400}"},
    } | AT_ONCE,
    "reasoning": {
        "messages": [COUNT, THINKING], "temperature": 0, "max_tokens": 300,
        "extra_body": FREE | {"continue_final_message": True, "add_generation_prompt": False},
    },
}  # fmt: skip
NUM_CHOICES = sum(body.get("n", 1) for body in STREAMS.values())
# Prompts that take more than ten steps of 64 tokens each. No two of them have a common prefix.
LONG_PROMPTS = [[(7 * position + 31 * index) % 900 + 10 for position in range(900)] for index in range(12)]
NUM_SCORED_PROMPTS = 3
NUM_SEQUENCES = NUM_CHOICES + NUM_SCORED_PROMPTS + len(LONG_PROMPTS)


def answers(server: Server, victim: str | None = None) -> dict[str, Any]:
    """Returns the answers to all requests. `victim`: part to kill while all of them are in progress; None: no part."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
    names = (*STREAMS, "prompt", "embeddings")
    salt = str(uuid.uuid4())
    with ThreadPoolExecutor(len(names)) as threads:

        def ask_streams() -> list[Future[Any]]:
            return [threads.submit(_stream, client, server.model, name) for name in STREAMS]

        def ask_prompts() -> list[Future[Any]]:
            return [
                threads.submit(_prompt_logprobs, client, server.model),
                threads.submit(_embeddings, client, server.model, salt),
            ]

        if victim is None:
            asked = ask_streams() + ask_prompts()
        else:
            asked = _kill_under_way(server, victim, ask_streams, ask_prompts)
        return {name: answer.result() for name, answer in zip(names, asked, strict=True)}


def _kill_under_way(server: Server, victim: str, ask_streams: Ask, ask_prompts: Ask) -> list[Future[Any]]:
    """Sends all requests while the worker is stopped. The worker then runs until every stream has some tokens, and
    stops before the first prompt is complete. Then the victim is killed."""
    wait_until(lambda: not num_sequences(server))
    worker = pid_of("worker", server)
    server.script.give(worker, stop_at(num_sequences=NUM_CHOICES, num_tokens=20), stop_after(6))
    with standing_still(worker):
        asked = ask_streams()
        wait_until(lambda: num_sequences(server) == NUM_CHOICES)
    wait_stopped(worker, asked)
    asked += ask_prompts()
    wait_until(lambda: num_sequences(server) == NUM_SEQUENCES)
    go_on(worker)
    wait_stopped(worker, asked)
    os.kill(pid_of(victim, server), signal.SIGKILL)
    if victim != "worker":
        go_on(worker)
    return asked


def _stream(client: openai.OpenAI, model: str, name: str) -> Any:
    """Returns everything that the client received, without ids that differ in each attempt."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    options: dict[str, Any] = {"messages": [COUNT], "stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(model=model, **(options | STREAMS[name])):
        state.handle_chunk(chunk)
    completion = state.current_completion_snapshot
    assert completion.usage is not None
    for choice in completion.choices:
        for call in choice.message.tool_calls or []:
            call.id = ""
    return completion.usage.completion_tokens, [choice.model_dump() for choice in completion.choices]


def _prompt_logprobs(client: openai.OpenAI, model: str) -> Any:
    answer = client.completions.create(
        model=model,
        prompt=LONG_PROMPTS[:NUM_SCORED_PROMPTS],
        echo=True,
        logprobs=2,
        max_tokens=20,
        temperature=0,
        extra_body=FREE,
    )
    return [choice.model_dump() for choice in answer.choices]


def _embeddings(client: openai.OpenAI, model: str, salt: str) -> list[list[float]]:
    """Returns embeddings of the long prompts. `salt`: a cache salt, so that no earlier run's prefixes are found."""
    answer = client.embeddings.create(
        model=model, input=LONG_PROMPTS, encoding_format="float", extra_body={"cache_salt": salt}
    )
    return [entry.embedding for entry in answer.data]
