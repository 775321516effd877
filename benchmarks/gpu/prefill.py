"""Measures prompts by length: one at a time, in chunks of the maximum number of tokens per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.sequences import Sequences
from services.worker.startup.load import LoadedWorker

LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
CHUNK = 8192
ROUNDS = 5


def measure(bench: Bench) -> Iterator[Figure]:
    lengths, chunk = ((12, 40), 32) if bench.dry_run else (LENGTHS, CHUNK)
    with bench.engine(lengths[-1] + 1, 16, chunk) as engine:
        yield from measure_prompts(bench, engine, lengths)


def measure_prompts(bench: Bench, engine: LoadedWorker, lengths: Sequence[int]) -> Iterator[Figure]:
    limits = engine.runner.limits
    sequences = Sequences(engine.runner, 1, max(lengths), 1)
    for length in lengths:
        seconds = []
        for _ in range(2 if bench.dry_run else ROUNDS + 1):
            plans = sequences.prompt_plans(sequences.random_tokens(length))
            seconds.append(bench.clock.whole(partial(sequences.run, plans)))
        taken = median(seconds[1:])  # the first run compiles kernels
        yield Figure(
            f"prefill, {length} tokens", length / taken, "tokens/s", length / bench.floors.prefill(length),
            f"{taken * 1e3:.4g} ms in chunks of {limits.max_num_batched_tokens}",
        )  # fmt: skip
