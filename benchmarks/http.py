"""Streams a completion with plain http.client, so that the client itself takes little CPU time."""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit

from benchmarks.direct import Timing

MODEL = "quire-chat"
PROMPT = list(range(10, 42))  # token ids, so that tokenizing is not measured


def stream_completion(url: str, max_tokens: int, connection: http.client.HTTPConnection | None = None) -> Timing:
    """Generates exactly `max_tokens` greedy tokens for PROMPT."""
    connection = connection or http.client.HTTPConnection(urlsplit(url).netloc)
    body = {
        "model": MODEL, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    first = 0.0
    last = b""
    for line in response:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - start
            last = line
    tokens = json.loads(last[6:])["usage"]["completion_tokens"]
    return Timing(first, time.perf_counter() - start, tokens)
