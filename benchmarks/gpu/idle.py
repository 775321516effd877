"""How much of the time the GPU waits for the host while it decodes."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.sequences import Sequences
from benchmarks.gpu.trace import gaps, span, trace

BATCH, CONTEXT = 128, 512
WARM_UP, STEPS = 16, 40


def measure(bench: Bench) -> Iterator[Figure]:
    batch, context, warm_up, steps = (2, 20, 2, 3) if bench.dry_run else (BATCH, CONTEXT, WARM_UP, STEPS)
    with bench.engine(context + warm_up + steps, batch, 8192) as engine:
        sequences = Sequences(engine.runner, batch, context, warm_up + steps)
        sequences.start()
        sequences.run(sequences.decode_plans(warm_up))
        plans = sequences.decode_plans(steps)
        ran = trace(lambda: sequences.run(plans), on_gpu=bench.on_gpu)
        idle, whole = sorted(gaps(ran), reverse=True), span(ran)
        # Steps are launched one by one: the gap before each of them is among the longest.
        between = idle[: steps - 1]
        yield Figure(f"idle, batch {batch}, all gaps", 100 * sum(idle) / whole, "%", note=f"{len(idle)} gaps")
        yield Figure(
            "idle between steps", 100 * sum(between) / whole, "%",
            note=f"the {steps - 1} longest gaps of {steps} steps, the longest {max(idle, default=0.0):.1f} us",
        )  # fmt: skip
        yield Figure("a step, profiled", whole / steps / 1e3, "ms", note=f"{len(ran) / steps:.0f} launches")
