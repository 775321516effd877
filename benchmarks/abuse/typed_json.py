"""Large requests to InferenceService as JSON, which the gateway translates in the thread that serves all streams."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from benchmarks.abuse.attack import MODEL, Attack, Row, http_request, posting, sending

SERVICE = "/quire.inference.v1.InferenceService"
# An ordinary word of the model.
_ID = 300


def calling(method: str, **fields: Any) -> Attack:
    return posting(f"{SERVICE}/{method}", **fields)


def text(num_bytes: int) -> Attack:
    return calling("Tokenize", text="word " * (num_bytes // 5))


def ids(count: int) -> Attack:
    return calling("Generate", tokenIds={"ids": [_ID] * count}, options={"stop": {"maxTokens": 1}})


def biases(count: int) -> Attack:
    all_biases = [{"tokenId": number, "bias": 1} for number in range(count)]
    return calling("Generate", text="Hello!", options={"sampling": {"logitBias": all_biases}})


def messages(count: int) -> Attack:
    return calling("Chat", messages=[{"role": "user", "content": "a"}] * count)


def unknown_fields(count: int) -> Attack:
    return calling("Chat", **{f"f{number}": 1 for number in range(count)})


def nested(depth: int) -> Attack:
    body = json.dumps({"model": MODEL, "messages": "@"}).replace('"@"', "[" * depth + "]" * depth)
    return sending(http_request(f"{SERVICE}/Chat", body.encode()))


def texts_of_tokens(count: int) -> Attack:
    return calling("Detokenize", tokenIds=[_ID] * count, each=True)


def embedded(count: int) -> Attack:
    return calling("Embed", inputs=[{"text": "word " * 15}] * count)


def log_probabilities(choices: int, tokens: int) -> Attack:
    options = {"n": choices, "stop": {"maxTokens": tokens, "ignoreEos": True}, "sampling": {"logprobs": 20}}
    return calling("Generate", text="Hello!", options=options)


ROWS = (
    Row("typed JSON: 3.9 MB of text", partial(text, 3_900_000), (400,), "text"),
    Row("typed JSON: 1 MB of text", partial(text, 1_000_000), (200,)),
    Row("typed JSON: 700,000 token ids", partial(ids, 700_000), (400,), "token_ids.ids"),
    Row("typed JSON: 100,000 biases", partial(biases, 100_000), (400,)),
    Row("typed JSON: 100,000 messages", partial(messages, 100_000), (400,)),
    Row("typed JSON: 250,000 unknown fields", partial(unknown_fields, 250_000), (400,), "messages"),
    Row("typed JSON: 1,000,000 arrays in one another", partial(nested, 1_000_000), (400,)),
    Row("typed JSON: 250,000 tokens to text, one by one", partial(texts_of_tokens, 250_000), (200,)),
    Row("typed JSON: 2,048 texts to embed", partial(embedded, 2_048), (200,)),
    Row("typed JSON: n = 128, 64 tokens, 20 log probabilities", partial(log_probabilities, 128, 64), (200, 429)),
    Row("typed JSON: a body of 20 MB", partial(text, 20_000_000), (413,)),
)
