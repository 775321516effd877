"""Measures the time from `quire serve` to the first token of an answer. Only the disk cache is warm."""

from __future__ import annotations

import statistics
import time

from benchmarks.http import stream_completion
from benchmarks.stack import command, free_port, wait_healthy


def measure(rounds: int = 5) -> dict[str, float]:
    """Returns medians in seconds."""
    ready, first_token = [], []
    for _ in range(rounds):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        start = time.perf_counter()
        with command("quire.cli.main", "serve", "--port", str(port)) as process:
            wait_healthy(url, process)
            ready.append(time.perf_counter() - start)
            first_token.append(ready[-1] + stream_completion(url, max_tokens=1).first_token_s)
    return {"ready_s": statistics.median(ready), "first_token_s": statistics.median(first_token)}
