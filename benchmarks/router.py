"""What one router process carries, behind Envoy and in front of a scheduler that pours tokens: server-sent events and
tokens per second of the router's own processor time, how late they are, requests per second with one-token answers,
and what the parts around a worker add to the time to first token when idle.

The clients, Envoy and the scheduler share the machine's cores with the router, so rates are told per second of the
processor time that the router took, which is what a core of its own would give it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchmarks.pouring_scheduler import MODEL
from benchmarks.stack import command, free_port, wait_healthy

STREAMS = (1, 64, 256, 1024)
# Over all streams, a pace that leaves nothing to merge, and one that no router keeps up with event by event.
PACED_TOKENS_PER_S = 6_000
POURED_TOKENS_PER_S = 60_000
# Of the scheduler, where answers have one token: as good as at once.
ONE_TOKEN_STEPS_PER_S = 10_000
SECONDS = 6.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EVENT = b"\ndata: "


@dataclass(slots=True)
class Traffic:
    events: int = 0
    tokens: int = 0
    requests: int = 0


@contextmanager
def poured(steps_per_s: float) -> Iterator[tuple[int, int]]:
    """The gateway's port, and the router's process id."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory, ExitStack() as stack:
        scheduler, router = (f"unix:{Path(directory) / name}" for name in ("s", "r"))
        port, main = free_port(), "quire.cli.main"
        stack.enter_context(command("benchmarks.pouring_scheduler", scheduler, str(steps_per_s)))
        process = stack.enter_context(command(main, "router", "--listen", router, "--scheduler", scheduler))
        gateway = stack.enter_context(command(main, "gateway", "--port", str(port), "--router", router))
        wait_healthy(f"http://127.0.0.1:{port}", gateway)
        yield port, process.pid


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def request_bytes(max_tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": MODEL, "messages": [{"role": "user", "content": "Tell me something."}], "stream": True,
            "max_tokens": max_tokens, "ignore_eos": True,
        }
    ).encode()  # fmt: skip
    head = ("POST /v1/chat/completions HTTP/1.1", "host: quire", "content-type: application/json")
    return "\r\n".join((*head, f"content-length: {len(body)}", "", "")).encode() + body


async def stream(port: int, request: bytes, deadline: float, traffic: Traffic, first_tokens: list[float]) -> None:
    """Asks again and again on one connection. An answer that is under way at the deadline is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                sent = time.perf_counter()
                writer.write(request)
                data, is_first = b"", True
                while b"\ndata: [DONE]" not in data:
                    piece = await reader.read(1 << 16)
                    if not piece:
                        raise RuntimeError("the gateway closed a stream")
                    # What came before ends the last answer.
                    if is_first and _EVENT in piece:
                        is_first = False
                        first_tokens.append(time.perf_counter() - sent)
                    # Kept only as long as a mark could begin in it.
                    traffic.events += piece.count(_EVENT)
                    data = data[-16:] + piece
                traffic.requests += 1
    except TimeoutError:
        return
    finally:
        writer.close()


async def run_streams(port: int, count: int, max_tokens: int, seconds: float) -> tuple[Traffic, list[float]]:
    traffic, first_tokens = Traffic(), list[float]()
    deadline = asyncio.get_running_loop().time() + seconds
    request = request_bytes(max_tokens)
    await asyncio.gather(*(stream(port, request, deadline, traffic, first_tokens) for _ in range(count)))
    return traffic, first_tokens


def scrape(port: int) -> tuple[float, dict[float, float]]:
    """Tokens generated so far, and how many deliveries took at most so many seconds."""
    tokens, buckets = 0.0, dict[float, float]()
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith("vllm:generation_tokens_total{"):
                tokens = float(line.rpartition(" ")[2])
            elif line.startswith("quire:delivery_seconds_bucket{"):
                bound = line.partition('le="')[2].partition('"')[0]
                buckets[float(bound)] = float(line.rpartition(" ")[2])
    return tokens, buckets


def percentile_bound(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """The least of the histogram's bounds that at least this share is within."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    total = max(counts.values())
    return min(bound for bound, count in counts.items() if count >= share * total)


def rates(port: int, pid: int, count: int, max_tokens: int, seconds: float = SECONDS) -> dict[str, float]:
    asyncio.run(run_streams(port, count, max_tokens, 1.0))  # warm
    tokens_before, buckets_before = scrape(port)
    processor_before = processor_seconds(pid)
    traffic, first_tokens = asyncio.run(run_streams(port, count, max_tokens, seconds))
    processor = processor_seconds(pid) - processor_before
    tokens_after, buckets_after = scrape(port)
    tokens = tokens_after - tokens_before
    return {
        "tokens_per_s": tokens / seconds,
        "events_per_s": traffic.events / seconds,
        "tokens_per_core_s": tokens / processor,
        "events_per_core_s": traffic.events / processor,
        "router_busy_percent": 100 * processor / seconds,
        "delivery_p99_at_most_ms": 1e3 * percentile_bound(buckets_before, buckets_after, 0.99),
        "requests_per_core_s": traffic.requests / processor,
        "requests_per_s": traffic.requests / seconds,
        "first_token_ms": 1e3 * statistics.median(first_tokens),
    }


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}

    def take(name: str, found: dict[str, float], *keys: str) -> None:
        figures.update({f"{name}_{key}": found[key] for key in keys})

    streamed = (
        "tokens_per_core_s",
        "events_per_core_s",
        "tokens_per_s",
        "router_busy_percent",
        "delivery_p99_at_most_ms",
    )
    for name, tokens_per_s in (("paced", PACED_TOKENS_PER_S), ("poured", POURED_TOKENS_PER_S)):
        for count in STREAMS:
            with poured(tokens_per_s / count) as (port, pid):
                take(f"{name}_{count}", rates(port, pid, count, max_tokens=100_000), *streamed)
    with poured(ONE_TOKEN_STEPS_PER_S) as (port, pid):
        take("idle", rates(port, pid, 1, max_tokens=1, seconds=3.0), "first_token_ms")
        take("one_token", rates(port, pid, 64, max_tokens=1), "requests_per_s", "requests_per_core_s")
    return figures
