"""What cannot be served is refused at the door, by name, and nothing else suffers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
from collections.abc import Awaitable
from typing import Any

import openai
import pytest

from tests.e2e.conftest import Server
from tests.e2e.parts import metric
from tests.fakes.waiting import HANG_S, wait_until

MESSAGES = [{"role": "user", "content": "Hello!"}]
DEEP = "[" * 10_000 + "]" * 10_000


def chat(**fields: Any) -> str:
    return json.dumps({"model": "quire-chat", "messages": MESSAGES, "max_tokens": 5} | fields)


# name: path, body, status, the field that the error names
CASES: dict[str, tuple[str, str, int, str | None]] = {
    "not JSON": ("/v1/chat/completions", "{nonsense", 400, None),
    "empty body": ("/v1/chat/completions", "", 400, None),
    "not an object": ("/v1/chat/completions", "[1, 2]", 400, None),
    "NaN": ("/v1/chat/completions", chat().replace('"max_tokens": 5', '"temperature": NaN'), 400, None),
    "deeply nested": ("/v1/chat/completions", chat().replace('"Hello!"', DEEP), 400, None),
    "wrong type": ("/v1/chat/completions", chat(temperature="hot"), 400, "temperature"),
    "wrong type inside": ("/v1/chat/completions", chat(stop=[1, {}]), 400, "stop"),
    "unknown model": ("/v1/chat/completions", chat(model="gpt-none"), 404, "model"),
    "no messages": ("/v1/chat/completions", chat(messages=[]), 400, "messages"),
    "messages of the wrong type": ("/v1/chat/completions", chat(messages="hi"), 400, "messages"),
    "an empty role": ("/v1/chat/completions", chat(messages=[{"role": "", "content": "x"}]), 400, "messages"),
    "negative max_tokens": ("/v1/chat/completions", chat(max_tokens=-1), 400, "max_tokens"),
    "huge max_tokens": ("/v1/chat/completions", chat(max_tokens=10**9), 400, "max_tokens"),
    "max_tokens past every integer": ("/v1/chat/completions", chat(max_tokens=10**40), 400, "max_tokens"),
    "temperature 9": ("/v1/chat/completions", chat(temperature=9), 400, "temperature"),
    "top_p below 0": ("/v1/chat/completions", chat(top_p=-0.1), 400, "top_p"),
    "n of 0": ("/v1/chat/completions", chat(n=0), 400, "n"),
    "huge n": ("/v1/chat/completions", chat(n=100_000), 400, "n"),
    "logit_bias of no token": ("/v1/chat/completions", chat(logit_bias={"99999999": 1}), 400, "logit_bias"),
    "prompt too long": (
        "/v1/chat/completions",
        chat(messages=[{"role": "user", "content": "a " * 50_000}]),
        400,
        "messages",
    ),
    "token ids out of range": (
        "/v1/completions",
        json.dumps({"model": "quire-chat", "prompt": [1, 10**6]}),
        400,
        "prompt",
    ),
    "negative token ids": ("/v1/completions", json.dumps({"model": "quire-chat", "prompt": [-1]}), 400, "prompt"),
    "empty prompt": ("/v1/completions", json.dumps({"model": "quire-chat", "prompt": []}), 400, "prompt"),
    "body of 20 MB": ("/v1/chat/completions", chat(user="x" * 20_000_000), 413, None),
    "no such path": ("/v1/nothing", "{}", 404, None),
}


def post(server: Server, path: str, body: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before the whole body was sent
        connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert isinstance(answer, dict)
    return response.status, answer


@pytest.mark.parametrize("case", CASES)
def test_is_refused_in_openais_shape(server: Server, case: str) -> None:
    path, body, status, param = CASES[case]
    got_status, answer = post(server, path, body)
    assert got_status == status, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert (error["param"] or "").split(".")[0].split("[")[0] == (param or "")
    if param is not None:
        assert param in error["message"]


async def test_good_requests_among_a_thousand_bad_ones_are_right_and_every_block_is_free(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        # Long bodies cost the client more than the server: one in fifty.
        short = itertools.cycle([case for case in CASES.values() if len(case[1]) < 10_000])
        long = itertools.cycle([case for case in CASES.values() if len(case[1]) >= 10_000])
        questions = [f"What is {first} plus {second}?" for first in range(1, 8) for second in range(1, 8)]
        turns = asyncio.Semaphore(32)

        async def send_bad(path: str, body: str, status: int) -> None:
            async with turns:
                got_status, _ = await asyncio.to_thread(post, server, path, body)
            assert got_status == status

        async def send_good(question: str) -> tuple[str, str]:
            async with turns:
                answer = await client.chat.completions.create(
                    model=server.model,
                    messages=[{"role": "user", "content": question}],
                    temperature=0,
                    max_tokens=40,
                )
            return question, answer.choices[0].message.content or ""

        alone = [await send_good(question) for question in questions]
        # One good request after every twenty bad ones, in the order in which they get their turns.
        mixed: list[Awaitable[tuple[str, str] | None]] = []
        for number in range(1_000):
            path, body, status, _ = next(long if number % 50 == 0 else short)
            mixed.append(send_bad(path, body, status))
            if number % 20 == 19:
                mixed.append(send_good(questions[number // 20 % len(questions)]))
        answers = {answer for answer in await asyncio.gather(*mixed) if answer is not None}
        assert answers == set(alone)
        # The routers hear the load a moment later.
        for name in ("vllm:kv_cache_usage_perc{", "vllm:num_requests_running{"):
            await asyncio.to_thread(wait_until, lambda: metric(server, name) == 0)  # noqa: B023
