"""Measures the fraction of time in which the GPU waits for the host during decodes: with the profiler, without the
other services, and with the worker's own events, for requests through gRPC."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.sequences import Sequences
from benchmarks.gpu.serve import STEP_LOG, ask, serving, window_of
from benchmarks.gpu.step_events import idle_figures, read
from benchmarks.gpu.trace import gaps, span, trace

BATCH, CONTEXT = 128, 512
WARM_UP, STEPS = 16, 40


def measure(bench: Bench) -> Iterator[Figure]:
    yield from measure_profiled(bench)
    yield from measure_served(bench)


def measure_served(bench: Bench) -> Iterator[Figure]:
    """Measures the idle time while `BATCH` requests, sent through router and scheduler, decode in one batch."""
    batch, tokens = (2, 6) if bench.dry_run else (BATCH, CONTEXT)
    with tempfile.TemporaryDirectory(prefix="quire-") as name:
        folder = Path(name)
        with serving(bench, folder, tokens, batch) as routers:
            timings = ask(routers, batch, batch, tokens, bench, seed=1)
        if bench.dry_run:  # a CPU's steps are not timed, and the two requests may not be in a step together
            yield Figure("steps in the worker's log", float(len(read(folder / STEP_LOG))), "steps")
            return
        yield from idle_figures(f"{batch} through gRPC", read(folder / STEP_LOG), window_of(timings), batch)


def measure_profiled(bench: Bench) -> Iterator[Figure]:
    batch, context, warm_up, steps = (2, 20, 2, 3) if bench.dry_run else (BATCH, CONTEXT, WARM_UP, STEPS)
    with bench.engine(context + warm_up + steps, batch, 8192) as engine:
        sequences = Sequences(engine.runner, batch, context, warm_up + steps)
        sequences.start()
        sequences.run(sequences.decode_plans(warm_up))
        plans = sequences.decode_plans(steps)
        ran = trace(lambda: sequences.run(plans), on_gpu=bench.on_gpu)
        idle, whole = sorted(gaps(ran), reverse=True), span(ran)
        # Steps are launched one by one, so the gaps between them are the longest ones.
        between = idle[: steps - 1]
        yield Figure(f"idle, batch {batch}, all gaps", 100 * sum(idle) / whole, "%", note=f"{len(idle)} gaps")
        yield Figure(
            "idle between steps", 100 * sum(between) / whole, "%",
            note=f"the {steps - 1} longest gaps of {steps} steps, the longest {max(idle, default=0.0):.1f} us",
        )  # fmt: skip
        yield Figure("a step, profiled", whole / steps / 1e3, "ms", note=f"{len(ran) / steps:.0f} launches")
