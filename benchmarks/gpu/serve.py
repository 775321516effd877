"""Measures the whole stack through gRPC: clients, routers, scheduler and worker are processes of this host."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.client import Timing
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.floors import Floors
from benchmarks.gpu.machine import ROOT
from benchmarks.gpu.processes import stack
from benchmarks.gpu.step_events import Window, idle_figures, read
from shared.python_child import child_environment, python_command

CONCURRENCIES = (1, 32, 128, 256)
TOKENS = 1000  # of each prompt and of each output
ROUNDS = 2  # total requests per concurrent request
# A Python process sends or receives about 20,000 messages per second and core; a step of 256 sequences sends 256.
MOST_ROUTERS = 4
CHUNK = 8192
STEP_LOG = "steps.jsonl"


def measure(bench: Bench) -> Iterator[Figure]:
    concurrencies, tokens, rounds = ((2,), 6, 1) if bench.dry_run else (CONCURRENCIES, TOKENS, ROUNDS)
    floors = bench.floors
    windows: dict[int, Window] = {}
    with tempfile.TemporaryDirectory(prefix="quire-") as name:
        folder = Path(name)
        with serving(bench, folder, tokens, max(concurrencies)) as routers:
            for concurrency in concurrencies:
                timings = ask(routers, concurrency, rounds * concurrency, tokens, bench, seed=concurrency)
                windows[concurrency] = window_of(timings)
                yield from _figures(floors, concurrency, tokens, timings, dry_run=bench.dry_run)
        if bench.dry_run:  # a CPU's steps are not timed
            return
        events = read(folder / STEP_LOG)  # complete, because the worker has ended
        for concurrency, window in windows.items():
            yield from idle_figures(f"concurrency {concurrency}", events, window, concurrency)


@contextmanager
def serving(bench: Bench, folder: Path, tokens: int, max_num_seqs: int) -> Iterator[list[str]]:
    """Starts the stack for prompts and outputs of `tokens` tokens. Yields the routers' addresses after a first request
    of this length, which may have compiled kernels. The worker logs its steps to `folder`."""
    model = folder / "model"
    model.mkdir()
    arguments = [*bench.arguments(model, 2 * tokens + 16, max_num_seqs, CHUNK), "--step-log", str(folder / STEP_LOG)]
    with stack(folder, arguments, 1 if bench.dry_run else MOST_ROUTERS) as routers:
        ask(routers[:1], 1, 1, tokens, bench, seed=99)
        yield routers


def window_of(timings: Sequence[Timing]) -> Window:
    return Window(min(timing.start for timing in timings), max(timing.end for timing in timings))


def ask(routers: list[str], concurrency: int, requests: int, tokens: int, bench: Bench, seed: int) -> list[Timing]:
    """Sends the requests from one client process per router. Uses at most `concurrency` routers."""
    used = routers[: min(len(routers), concurrency)]
    clients = []
    for index, address in enumerate(used):
        share, own = ((n + index) // len(used) for n in (concurrency, requests))
        numbers = (share, own, tokens, tokens, bench.model.vocab_size, 1000 * seed + index)
        command = python_command("benchmarks.gpu.client", address, *map(str, numbers))
        clients.append(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=child_environment()))
    timings = []
    for client in clients:
        output, _ = client.communicate()
        if client.returncode:
            raise RuntimeError("a client process failed; see its error above")
        timings += [Timing(**timing) for timing in json.loads(output)]
    if any(timing.tokens != tokens for timing in timings):
        raise RuntimeError(f"an answer is not {tokens} tokens long")
    return timings


def _figures(
    floors: Floors, concurrency: int, tokens: int, timings: list[Timing], *, dry_run: bool
) -> Iterator[Figure]:
    """Yields throughput and latencies. Their floor is the time of the steps at the mean context and of the prompts
    alone."""
    seconds = max(timing.end for timing in timings) - min(timing.start for timing in timings)
    per_token = [(timing.end - timing.first_token) / (timing.tokens - 1) for timing in timings]
    first = [timing.first_token - timing.start for timing in timings]
    if dry_run:  # no time means anything
        seconds, per_token, first = 1.0, [1.0], [1.0]
    step = floors.decode(concurrency, 1.5 * tokens)
    rate = concurrency * tokens / (tokens * step + concurrency * floors.prefill(tokens))
    name = f"concurrency {concurrency}, {tokens} tokens in and out"
    yield Figure(f"{name}: output", sum(timing.tokens for timing in timings) / seconds, "tokens/s", rate)
    yield Figure(f"{name}: between tokens, median", median(per_token) * 1e3, "ms", step * 1e3)
    yield Figure(f"{name}: first token, median", median(first) * 1e3, "ms", floors.prefill(tokens) * 1e3)
