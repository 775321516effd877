"""Measures decode steps by batch size and context length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.floors import Floors
from benchmarks.gpu.sequences import Sequences
from services.worker.startup.load import LoadedWorker

BATCHES = (1, 8, 32, 128, 256)
CONTEXTS = (512, 4096)
WARM_UP, ROUNDS, STEPS = 8, 5, 24
MAX_STEPS = WARM_UP + ROUNDS * STEPS
CHUNK = 8192


def measure(bench: Bench) -> Iterator[Figure]:
    contexts, batches = ((20,), (1, 3)) if bench.dry_run else (CONTEXTS, BATCHES)
    with bench.engine(max(contexts) + MAX_STEPS, max(batches), CHUNK) as engine:
        yield from measure_steps(bench, engine, batches, contexts)


def measure_steps(
    bench: Bench, engine: LoadedWorker, batches: Sequence[int], contexts: Sequence[int], label: str = "decode"
) -> Iterator[Figure]:
    for context in contexts:
        for batch in batches:
            name = f"{label}, batch {batch}, context {context}"
            steps = (1, 1, 2) if bench.dry_run else (WARM_UP, ROUNDS, STEPS)
            try:
                sequences = Sequences(engine.runner, batch, context, steps[0] + steps[1] * steps[2])
            except ValueError as error:
                yield Figure(name, None, "ms", note=str(error))
                continue
            yield _step(bench, sequences, bench.floors, name, *steps)


def _step(
    bench: Bench, sequences: Sequences, floors: Floors, name: str, warm_up: int, rounds: int, steps: int
) -> Figure:
    """Measures steps that are launched without pauses, two in flight. Returns the median of the rounds' mean times."""
    sequences.start()
    sequences.run(sequences.decode_plans(warm_up))
    seconds = []
    for _ in range(rounds):
        plans = sequences.decode_plans(steps)
        seconds.append(bench.clock.whole(partial(sequences.run, plans)) / steps)
    batch, context = sequences.count, sequences.context + warm_up + rounds * steps / 2
    step = median(seconds)
    return Figure(name, step * 1e3, "ms", floors.decode(batch, context) * 1e3, f"{batch / step:,.0f} tokens/s")
