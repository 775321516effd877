"""Requests of every kind, under way at once while a part dies, and what became of each."""

from __future__ import annotations

import os
import signal
import sys
import threading
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.e2e.conftest import Server

# Every output takes some hundred tokens, so that none has ended when the last one has begun.
NAMES = {"type": "array", "items": {"type": "string", "minLength": 9, "maxLength": 12}, "minItems": 30, "maxItems": 30}
YEARS = {"type": "array", "items": {"type": "integer", "minimum": 1000, "maximum": 9999}, "minItems": 30}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"names": NAMES, "years": YEARS | {"maxItems": 30}},
    "required": ["names", "years"],
    "additionalProperties": False,
}
# So that the structure begins with the first token.
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
# Prompts that take many steps each; no two begin alike.
LONG_PROMPTS = [[(7 * position + 31 * index) % 900 + 10 for position in range(900)] for index in range(12)]


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


def metric(server: Server, name: str) -> float:
    """Of the router's, its first sample."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


class Progress:
    """How far each of several streams is."""

    def __init__(self) -> None:
        self._chunks = dict.fromkeys(STREAMS, 0)
        self._changed = threading.Condition()

    def count(self, name: str) -> None:
        with self._changed:
            self._chunks[name] += 1
            self._changed.notify()

    def end(self, name: str) -> None:
        with self._changed:
            self._chunks[name] = sys.maxsize
            self._changed.notify()

    @property
    def least(self) -> int:
        with self._changed:
            return min(self._chunks.values())

    def wait_for(self, num_chunks: int) -> None:
        """Until the client has so many of every stream, or all that came."""
        with self._changed:
            assert self._changed.wait_for(lambda: min(self._chunks.values()) >= num_chunks, 120), self._chunks


def answers(server: Server, victim: str | None = None) -> dict[str, Any]:
    """What everything is answered with; `victim` is killed while all of it is under way."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    for _ in range(5):
        progress = Progress()
        with ThreadPoolExecutor(len(STREAMS) + 2) as threads:
            asked = [threads.submit(_stream, client, server.model, name, progress) for name in STREAMS]
            progress.wait_for(40)
            # The last two wait at a worker that stands still, so that neither is answered before the other is known.
            worker = pid_of("worker", server)
            os.kill(worker, signal.SIGSTOP)
            try:
                asked.append(threads.submit(_prompt_logprobs, client, server.model))
                asked.append(threads.submit(_embeddings, client, server.model, salt=str(uuid.uuid4())))
                while not any(answer.done() for answer in asked) and _sequences(server) < NUM_CHOICES + 3 + 1:
                    pass
            finally:
                os.kill(worker, signal.SIGCONT)
            progress.wait_for(min(progress.least + 2, sys.maxsize))
            in_time = not any(answer.done() for answer in asked)
            if victim is not None and in_time:
                os.kill(pid_of(victim, server), signal.SIGKILL)
            if victim is None or in_time:
                names = (*STREAMS, "prompt", "embeddings")
                return {name: answer.result() for name, answer in zip(names, asked, strict=True)}
    raise AssertionError("something had always been answered before the last one began")


def _sequences(server: Server) -> float:
    """That the scheduler has, as it said a moment ago."""
    return metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting")


def _stream(client: openai.OpenAI, model: str, name: str, progress: Progress) -> Any:
    """Everything that the client was told, put together; but for what names this attempt alone."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    options: dict[str, Any] = {"messages": [COUNT], "stream": True, "stream_options": {"include_usage": True}}
    try:
        for chunk in client.chat.completions.create(model=model, **(options | STREAMS[name])):
            state.handle_chunk(chunk)
            progress.count(name)
    finally:
        progress.end(name)
    completion = state.current_completion_snapshot
    assert completion.usage is not None
    for choice in completion.choices:
        for call in choice.message.tool_calls or []:
            call.id = ""
    return completion.usage.completion_tokens, [choice.model_dump() for choice in completion.choices]


def _prompt_logprobs(client: openai.OpenAI, model: str) -> Any:
    answer = client.completions.create(
        model=model, prompt=LONG_PROMPTS[:3], echo=True, logprobs=2, max_tokens=20, temperature=0, extra_body=FREE
    )
    return [choice.model_dump() for choice in answer.choices]


def _embeddings(client: openai.OpenAI, model: str, salt: str) -> list[list[float]]:
    """`salt`: keeps what is cached of the prompts from being found again."""
    answer = client.embeddings.create(
        model=model, input=LONG_PROMPTS, encoding_format="float", extra_body={"cache_salt": salt}
    )
    return [entry.embedding for entry in answer.data]
