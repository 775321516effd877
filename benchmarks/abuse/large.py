"""Very large requests: lawful ones whose answers are large, and those that count too much of something."""

from __future__ import annotations

import json
import random

from benchmarks.abuse.attack import MODEL, Attack, Row, http_request, posting, sending

HELLO = [{"role": "user", "content": "Hello!"}]
# What a request that is too large may be answered.
REFUSED = (400, 413)


def echoed_log_probabilities(prompts: int = 30, tokens: int = 2001) -> Attack:
    chance = random.Random(1)
    ids = [[chance.randrange(10, 500) for _ in range(tokens)] for _ in range(prompts)]
    return posting("/v1/completions", prompt=ids, max_tokens=1, echo=True, logprobs=20)


def many_choices(choices: int = 128, tokens: int = 600) -> Attack:
    return posting(
        "/v1/chat/completions",
        messages=HELLO,
        n=choices,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=20,
    )


def biases(count: int = 10**6) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, logit_bias={str(key): 1 for key in range(count)})


def long_text(num_bytes: int = 15_000_000) -> Attack:
    return posting("/tokenize", prompt="word " * (num_bytes // 5))


def content_blocks(count: int = 3 * 10**5) -> Attack:
    blocks = [{"type": "text", "text": "a"}] * count
    return posting("/v1/chat/completions", messages=[{"role": "user", "content": blocks}])


def ollama_options(count: int = 10**6) -> Attack:
    return posting("/api/chat", messages=HELLO, options={f"o{number}": 1 for number in range(count)})


def unknown_fields(count: int = 8 * 10**5) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, **{f"f{number}": 1 for number in range(count)})


def nested(depth: int = 10**5) -> Attack:
    body = json.dumps({"model": MODEL, "messages": HELLO, "user": "@"}).replace('"@"', "[" * depth + "]" * depth)
    return sending(http_request("/v1/chat/completions", body.encode()))


def long_number(digits: int = 10**6) -> Attack:
    body = json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 777}).replace("777", "7" * digits)
    return sending(http_request("/v1/chat/completions", body.encode()))


ROWS = (
    Row("completions: 30 prompts of 2,001 ids, echo, 20 log probabilities", echoed_log_probabilities, (200, 400, 413)),
    Row("chat: n = 128, 600 tokens, 20 log probabilities", many_choices, (200, 400, 413)),
    Row("chat: logit_bias of 1,000,000 keys", biases, REFUSED, "logit_bias"),
    Row("/tokenize: 15 MB of text", long_text, (200, *REFUSED), "prompt"),
    Row("chat: 300,000 content blocks", content_blocks, REFUSED),
    Row("Ollama: 1,000,000 options", ollama_options, (200, *REFUSED)),
    Row("chat: 800,000 unknown fields", unknown_fields, (200, *REFUSED)),
    Row("JSON bomb: 100,000 arrays in one another", nested, REFUSED),
    Row("JSON bomb: a number of 1,000,000 digits", long_number, REFUSED),
    Row(
        "JSON bomb: a string of 15 MB",
        lambda: posting("/v1/chat/completions", messages=[{"role": "user", "content": "a" * 15_000_000}]),
        REFUSED,
    ),
    Row(
        "JSON bomb: 100,000 messages",
        lambda: posting("/v1/chat/completions", messages=HELLO * 100_000),
        REFUSED,
    ),
    Row(
        "JSON bomb: 3,000,000 token ids",
        lambda: posting("/v1/completions", prompt=[10] * 3_000_000),
        REFUSED,
        "prompt",
    ),
    Row("a body of 20 MB", lambda: posting("/v1/chat/completions", messages=HELLO, user="x" * 20_000_000), (413,)),
)
