"""Measures the throughput of one router process, behind Envoy and with a fake scheduler that sends tokens at a fixed
rate: server-sent events and tokens per second of the router's CPU time, their delay, requests per second with one-token
answers, and the time to first token on an idle router.

The router has one core to itself; the clients, Envoy and the scheduler share the others.
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
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from benchmarks.pouring_scheduler import MODEL
from benchmarks.stack import command, free_port, wait_healthy

STREAMS = (1, 64, 256, 1024)
# Rates over all streams: one at which each token is a separate event, and one at which the router must merge tokens.
PACED_TOKENS_PER_S = 6_000
POURED_TOKENS_PER_S = 60_000
# Rate of the scheduler's steps for one-token answers: so high that the scheduler adds almost no delay.
ONE_TOKEN_STEPS_PER_S = 10_000
SECONDS = 6.0
WARM_UP_SECONDS = 1.0
START_TIMEOUT_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EVENT = b"\ndata: "


@dataclass(slots=True)
class Traffic:
    """Counts of the events and answers that the clients have received."""

    events: int = 0
    requests: int = 0
    # Number of connections that wait for their first event, and an event that is set when it is 0.
    num_waiting: int = 0
    all_flow: asyncio.Event = field(default_factory=asyncio.Event)
    seconds_to_first_event: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of clients and router at one moment."""

    at: float
    processor_seconds: float
    events: int
    requests: int
    tokens: float
    # Maps each upper bound in seconds to the number of deliveries within it.
    deliveries: dict[float, float]


@contextmanager
def poured(steps_per_s: float) -> Iterator[tuple[int, int]]:
    """Runs fake scheduler, router and gateway. Yields the gateway's port and the router's process id."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory, ExitStack() as stack:
        scheduler, router = (f"unix:{Path(directory) / name}" for name in ("s", "r"))
        port, main = free_port(), "quire.cli.main"
        stack.enter_context(command("benchmarks.pouring_scheduler", scheduler, str(steps_per_s)))
        process = stack.enter_context(command(main, "router", "--listen", router, "--scheduler", scheduler))
        give_own_core(process.pid, stack)
        gateway = stack.enter_context(command(main, "gateway", "--port", str(port), "--router", router))
        wait_healthy(f"http://127.0.0.1:{port}", gateway)
        yield port, process.pid


def give_own_core(pid: int, stack: ExitStack) -> None:
    """Reserves one core for this process. All other processes of the benchmark use the other cores until the stack
    ends."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return
    own = max(cores)
    stack.callback(os.sched_setaffinity, 0, cores)
    os.sched_setaffinity(0, cores - {own})
    os.sched_setaffinity(pid, {own})


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
    head = ("POST /v1/chat/completions HTTP/1.1", "host: localhost", "content-type: application/json")
    return "\r\n".join((*head, f"content-length: {len(body)}", "", "")).encode() + body


async def stream(port: int, request: bytes, traffic: Traffic) -> None:
    """Sends one request after another on one connection, until cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    has_begun = False
    try:
        while True:
            sent = time.perf_counter()
            writer.write(request)
            data, is_first = b"", True
            while b"\ndata: [DONE]" not in data:
                piece = await reader.read(1 << 16)
                if not piece:
                    raise RuntimeError("the gateway closed a stream")
                # Data before the first event is the end of the previous answer.
                if is_first and _EVENT in piece:
                    is_first = False
                    traffic.seconds_to_first_event.append(time.perf_counter() - sent)
                    if not has_begun:
                        has_begun = True
                        traffic.num_waiting -= 1
                        if not traffic.num_waiting:
                            traffic.all_flow.set()
                # Keep the last bytes, in which a marker may begin.
                traffic.events += piece.count(_EVENT)
                data = data[-16:] + piece
            traffic.requests += 1
    finally:
        writer.close()


async def read(port: int, pid: int, traffic: Traffic) -> Reading:
    tokens, deliveries = await asyncio.to_thread(scrape, port)
    return Reading(time.perf_counter(), processor_seconds(pid), traffic.events, traffic.requests, tokens, deliveries)


async def run_streams(
    port: int, pid: int, count: int, max_tokens: int, seconds: float
) -> tuple[Reading, Reading, Traffic]:
    """Measures from the moment when all streams have begun, so that their start does not count."""
    traffic = Traffic(num_waiting=count)
    request = request_bytes(max_tokens)
    async with asyncio.timeout(WARM_UP_SECONDS + seconds + START_TIMEOUT_S), asyncio.TaskGroup() as group:
        streams = [group.create_task(stream(port, request, traffic)) for _ in range(count)]
        await traffic.all_flow.wait()
        await asyncio.sleep(WARM_UP_SECONDS)
        traffic.seconds_to_first_event.clear()
        before = await read(port, pid, traffic)
        await asyncio.sleep(seconds)
        after = await read(port, pid, traffic)
        for task in streams:
            task.cancel()
    return before, after, traffic


def scrape(port: int) -> tuple[float, dict[float, float]]:
    """Reads the number of generated tokens, and the buckets of the delivery histogram by upper bound in seconds."""
    tokens, buckets = 0.0, dict[float, float]()
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith("vllm:generation_tokens_total{"):
                tokens = float(line.rpartition(" ")[2])
            elif line.startswith("quire:delivery_seconds_bucket{"):
                bound = line.partition('le="')[2].partition('"')[0]
                buckets[float(bound)] = float(line.rpartition(" ")[2])
    return tokens, buckets


def shares_within(before: dict[float, float], after: dict[float, float]) -> dict[float, float]:
    """Returns, for each bound, the fraction of the deliveries between two readings that are within it."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    return {bound: count / max(counts.values()) for bound, count in counts.items()}


def rates(port: int, pid: int, count: int, max_tokens: int, seconds: float = SECONDS) -> dict[str, float]:
    before, after, traffic = asyncio.run(run_streams(port, pid, count, max_tokens, seconds))
    elapsed = after.at - before.at
    processor = after.processor_seconds - before.processor_seconds
    tokens, events = after.tokens - before.tokens, after.events - before.events
    requests = after.requests - before.requests
    within = shares_within(before.deliveries, after.deliveries)
    figures = {
        "tokens_per_s": tokens / elapsed,
        "events_per_s": events / elapsed,
        "tokens_per_core_s": tokens / processor,
        "events_per_core_s": events / processor,
        "router_busy_percent": 100 * processor / elapsed,
        "delivery_p99_at_most_ms": 1e3 * min(bound for bound, share in within.items() if share >= 0.99),
        "delivered_within_50_ms_percent": 100 * within[0.05],
        "requests_per_core_s": requests / processor,
        "requests_per_s": requests / elapsed,
    }
    if traffic.seconds_to_first_event:
        figures["first_token_ms"] = 1e3 * statistics.median(traffic.seconds_to_first_event)
    return figures


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
        "delivered_within_50_ms_percent",
    )
    for name, tokens_per_s in (("paced", PACED_TOKENS_PER_S), ("poured", POURED_TOKENS_PER_S)):
        for count in STREAMS:
            with poured(tokens_per_s / count) as (port, pid):
                take(f"{name}_{count}", rates(port, pid, count, max_tokens=100_000), *streamed)
    with poured(ONE_TOKEN_STEPS_PER_S) as (port, pid):
        take("idle", rates(port, pid, 1, max_tokens=1, seconds=3.0), "first_token_ms")
        take("one_token", rates(port, pid, 64, max_tokens=1), "requests_per_s", "requests_per_core_s")
    return figures
